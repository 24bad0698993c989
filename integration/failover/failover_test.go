package failover_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// majors are the versions with failover slots.
var majors = []int{17, 18}

// eachMajor runs a test on each of them.
func eachMajor(t *testing.T, test func(t *testing.T, major int)) {
	t.Parallel()
	for _, major := range majors {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			test(t, major)
		})
	}
}

// alter changes a setting of a running server.
func (s *site) alter(pg *localstack.Postgres, name, value string) {
	s.t.Helper()
	s.must(execAt(s.t.Context(), pg.URL("postgres"), `ALTER SYSTEM SET `+name+` = '`+value+`'`))
	s.must(pg.Reload())
	s.becomes(pg, value, `SELECT current_setting('`+name+`')`)
}

// synced waits until the standby has a copy of the slot that outlives a promotion, and writes rows meanwhile: the slot
// has to move once before it is copied for good.
func (s *site) synced(standby *localstack.Postgres) {
	s.t.Helper()
	testenv.Until(s.t, patience, func(ctx context.Context) error {
		s.insert(1)
		s.Exec(`SELECT pg_log_standby_snapshot()`)
		got, err := testenv.TextAt(ctx, s.urlOf(standby), `SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
		if err == nil && got != "true" {
			err = errors.New("the standby has no copy of the slot")
		}
		return err
	})
}

// promote makes a standby the primary and returns where its copy of the slot stands.
func (s *site) promote(standby *localstack.Postgres) (confirmed string) {
	s.t.Helper()
	confirmed = s.slotAt(s.urlOf(standby))
	s.must(standby.Promote(s.t.Context()))
	s.primary = standby
	return confirmed
}

// guarded starts a standby before which nothing is published that it does not have.
func (s *site) guarded() *localstack.Postgres {
	s.t.Helper()
	standby := s.addStandby("standby", nil)
	s.alter(s.primary, "synchronized_standby_slots", "standby")
	return standby
}

// Relay and primary are stopped in order, the standby is promoted, and the relay is started with the new server's address:
// nothing is lost or moved, and what is repeated was confirmed after the slot was last copied.
func TestPlannedFailover(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		s := newSite(t, major, nil)
		standby := s.guarded()
		s.start(nil)
		s.synced(standby)
		s.insert(50)
		s.stop()
		s.must(s.primary.Stop(t.Context(), localstack.Fast))
		confirmed := s.promote(standby)
		s.URL = s.urlOf(standby)
		s.insert(50)
		s.start(nil)
		v := s.judge()
		v.noPhantoms(t)
		v.repeatsOnlyFrom(t, confirmed)
		s.insert(5)
		s.judge()
		s.stop()
	})
}

// The primary dies under load, and the relay follows by itself to the standby that takes its place. The standby had
// everything that was published.
func TestUnplannedFailover(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		s := newSite(t, major, nil)
		standby := s.guarded()
		s.start(nil)
		s.synced(standby)
		end := s.load()
		s.moreRows(1000)
		s.must(s.primary.Kill())
		confirmed := s.promote(standby)
		began := time.Now()
		s.relay.WaitReady(patience)
		t.Logf("ready %v after the promotion", time.Since(began).Round(10*time.Millisecond))
		s.moreRows(500)
		end()
		v := s.judge()
		v.noPhantoms(t)
		v.repeatsOnlyFrom(t, confirmed)
		if status, _, err := s.relay.Get(t.Context(), "/readyz"); status != 200 {
			t.Errorf("/readyz answers %d (%v)", status, err)
		}
		s.stop()
	})
}
