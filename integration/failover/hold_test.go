package failover_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// While a standby of synchronized_standby_slots is away, the server holds back what it does not have. The relay says so,
// keeps its connection and waits; it does not halt, and leaves when the server is stopped.
func TestStandbyAway(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		s := newSite(t, major, nil)
		standby := s.guarded()
		s.start(nil)
		s.synced(standby)
		s.judge()
		walsender, published := s.slot("active_pid"), s.Text(`SELECT count(*) FROM public.outbox`)
		s.must(standby.Stop(t.Context(), localstack.Fast))
		s.insert(5)
		s.becomes(s.primary, "true", `SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
		s.says(patience, "synchronized_standby_slots")
		testenv.Pass(t, 5*time.Second) // longer than wal_sender_timeout
		if got := s.slot("active_pid"); got != walsender {
			t.Errorf("walsender %s became %s while the standby was away", walsender, got)
		}
		if got := scene.Metric(t, s.relay, "cdc_relay_messages_received_total"); published != fmt.Sprint(got) {
			t.Errorf("%v rows were read, but only %s are safe on the standby", got, published)
		}
		if strings.Contains(s.relay.Output(), `"level":"ERROR"`) {
			t.Error("the relay logs an error")
		}
		s.must(standby.Start(t.Context()))
		s.judge()

		s.must(standby.Stop(t.Context(), localstack.Fast))
		s.insert(5)
		began := time.Now()
		limit, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s.must(s.primary.Stop(limit, localstack.Fast))
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the server took %v to stop, want at most 3s", took)
		}
		s.must(s.primary.Start(t.Context()))
		s.must(standby.Start(t.Context()))
		s.judge().noPhantoms(t)
		s.stop()
	})
}

// A publication that is dropped and made again between two looks at it: what was written in between cannot be decoded, by
// any server, ever. Up to 17 the server fails there; from 18 on it passes over it, and only a notice in the stream tells.
// The relay halts before it, names the range, and goes on when somebody has passed it.
func TestPublicationGoneForAMoment(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		s := newSite(t, major, nil)
		s.start(nil)
		s.insert(5)
		s.judge()
		sequence := s.Text(`SELECT max(seq) FROM public.outbox`)
		s.Exec(`DROP PUBLICATION ` + s.Publication)
		s.insert(1)
		s.Exec(`CREATE PUBLICATION ` + s.Publication + ` FOR TABLE public.outbox WITH (publish = 'insert')`)
		end := s.Text(`SELECT pg_current_wal_insert_lsn()`)
		t.Log(s.says(patience, "the publication did not exist when they were written", "pg_replication_slot_advance"))
		s.halted(major >= 18) // Up to 17 the error ends the walsender.
		if s.Text(`SELECT confirmed_flush_lsn < $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, s.Slot, end) != "true" {
			t.Errorf("confirmed up to %s, beyond rows that were never read", s.slot("confirmed_flush_lsn"))
		}
		s.stop()
		s.Exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, s.Slot)
		s.Exec(`DELETE FROM public.outbox WHERE seq > $1::text::bigint`, sequence)
		s.start(nil)
		s.insert(5)
		s.judge().noPhantoms(t)
		s.stop()
	})
}
