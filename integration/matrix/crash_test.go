package matrix_test

import (
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/crash"
)

// A relay that dies with rows that are committed and read, but not published, leaves them to its successor.
func crashBeforePublish(t *testing.T, st *stage) {
	p := newPlay(t, st)
	r := p.start(testenv.RelayOptions{})
	within := p.insert("1", "2", "3") // Their topic is not there yet, so they cannot be published.
	p.until(r, "cdc_relay_in_flight_messages", is(3))
	r.Kill()
	p.CreateTopic("order", 1)
	p.published()
	p.Held(within)

	// What happens next: the successor reads them again and publishes them.
	r = p.start(testenv.RelayOptions{})
	p.Settled(within)
	p.published("1", "2", "3")
	p.Settled(p.insert("4"))
	p.published("1", "2", "3", "4")
	p.Stop(r)
}

// A relay that dies when the brokers have acknowledged what it has not noted, let alone confirmed: its successor finds
// the rows in their partition. Told not to look, it publishes them again, with the same message ids.
func crashBeforeConfirm(t *testing.T, st *stage) {
	for name, resume := range map[string]bool{"with_resume": true, "without_resume": false} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, st)
			p.CreateTopic("order", 1)
			settings := testenv.Settings{"resume.enabled": resume}
			r := p.start(testenv.RelayOptions{Settings: settings, CrashAt: crash.Produced})
			rows := []string{"1", "2", "3"}
			within := p.insert(rows...)
			if code := r.Wait(patience); code != -1 {
				t.Errorf("exit code %d, want the end by a signal", code)
			}
			sent := rows[:p.Count(p.topic)] // All of them, unless the transaction came in pieces.
			if len(sent) == 0 {
				t.Fatal("nothing was published before the crash")
			}
			p.published(sent...)
			p.Held(within)

			// What happens next.
			r = p.start(testenv.RelayOptions{Settings: settings})
			p.Settled(within)
			p.Settled(p.insert("4"))
			want, skipped := []string{"1", "2", "3", "4"}, len(sent)
			if !resume {
				want, skipped = slices.Concat(sent, want), 0
			}
			p.published(want...)
			if got := scene.Metric(t, r, "cdc_relay_resume_rows_skipped_total"); int(got) != skipped {
				t.Errorf("%v rows were skipped, want %d", got, skipped)
			}
			p.Stop(r)
		})
	}
}
