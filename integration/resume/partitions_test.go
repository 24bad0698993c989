package resume_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// More partitions move keys, also into partitions in use.
func TestPartitionsAdded(t *testing.T) {
	s := newStory(t)
	s.crash()
	s.Grow(s.topics[0], 6)
	s.restart()
	s.all()
	was, moved := map[string]int32{}, 0
	for _, r := range s.before {
		was[r.key] = r.partition
	}
	for _, r := range s.read(s.from) {
		if p, known := was[r.key]; known && p != r.partition && r.partition < partitions {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no key has moved into a partition in use")
	}
}

// Partitions are added while a relay that has been restarted passes over what is there already.
func TestPartitionsAddedWhileResuming(t *testing.T) {
	s := newStory(t)
	s.crash()
	s.slow()
	r := s.Start(s.settings)
	s.Grow(s.topics[0], 6)
	r.WaitOutput("more partitions", patience)
	s.settled(s.after)
	s.settled(s.write(keys))
	s.complete()
}

// Partitions are added in the middle of a transaction, and the relay dies when it uses them.
func TestPartitionsAddedBeforeTheCrash(t *testing.T) {
	s := newStory(t)
	s.slow()
	r := s.Start(s.settings)
	s.settled(s.write(settledRows))
	s.after = s.write(rows)
	s.Grow(s.topics[0], 6)
	testenv.Until(t, patience, func(context.Context) error {
		if !slices.ContainsFunc(s.read(nil), func(r record) bool { return r.count == 6 }) {
			return errors.New("no record was placed by the new count")
		}
		return nil
	})
	r.Kill()
	s.look()
	if n := len(s.before); n >= settledRows+rows {
		t.Fatalf("all %d rows are there: the crash is not in the middle", n)
	}
	s.restart()
	s.complete()
}

// slow has the relay read the log slowly, so that something can happen meanwhile.
func (s *story) slow() {
	s.t.Helper()
	cfg, err := pgx.ParseConfig(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	server := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	p, err := proxy.New(func() string { return server })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	p.Limit(proxy.ToClient, 12<<10)
	s.settings["postgres.url"] = strings.Replace(s.URL, server, p.Addr(), 1)
}

// complete fails the test unless every row is there and first copies of each key are in order, first those that were
// placed by the lower partition count.
func (s *story) complete() {
	s.t.Helper()
	all := s.read(nil)
	slices.SortStableFunc(all, func(a, b record) int { return cmp.Compare(a.count, b.count) })
	if lost := missing(all); len(lost) > 0 {
		s.t.Errorf("%d rows are lost: %v", len(lost), lost)
	}
	s.inOrder(all)
	s.t.Logf("%d repeats", len(all)-settledRows-rows-keys)
}
