package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// relay is one process of the relay, and what was last seen of its metrics.
type relay struct {
	*testenv.Relay
	name string
	seen metrics
}

// metrics are those that the lab looks at; one that a process does not have is 0.
type metrics struct {
	ready, leader        bool
	inFlight, received   int
	resumed, skipped     int
	duplicates, givenUp  int
	renewed, reconnected int
}

// never is a crash point that no process passes: so all relays of a lab are of one build.
const never = "never"

// start starts a relay that is to crash at a point, or [never]. It runs without the race detector, which other packages
// use: here many rows, restarts and faults count.
func (l *lab) start(crashAt string, more testenv.Settings) *relay {
	l.t.Helper()
	settings := maps.Clone(l.settings)
	maps.Copy(settings, more)
	l.started++
	r := &relay{
		Relay: l.env.StartRelay(testenv.RelayOptions{Settings: settings, Plain: true, CrashAt: crashAt}),
		name:  "relay-" + strconv.Itoa(l.started),
	}
	l.t.Cleanup(func() {
		if *logs != "" {
			r.Kill()
			path := filepath.Join(*logs, strings.ReplaceAll(l.t.Name(), "/", "-")+"-"+r.name+".log")
			if err := os.WriteFile(path, []byte(r.Output()), 0o600); err != nil {
				l.t.Error(err)
			}
		}
	})
	return r
}

// look reads the metrics, and says whether the relay has answered. What was seen before stays when it has not.
func (r *relay) look(ctx context.Context) bool {
	_, body, err := r.Get(ctx, "/metrics")
	if err != nil || !strings.Contains(body, "cdc_relay_leader") {
		return false
	}
	value := func(name string) (sum int) {
		for line := range strings.Lines(body) {
			series, number, _ := strings.Cut(strings.TrimSpace(line), " ") // No label has a space.
			if bare, _, _ := strings.Cut(series, "{"); bare == "cdc_relay_"+name {
				f, _ := strconv.ParseFloat(number, 64) // What cannot be read counts as 0.
				sum += int(f)
			}
		}
		return sum
	}
	r.seen = metrics{
		ready: value("ready") == 1, leader: value("leader") == 1,
		inFlight: value("in_flight_messages"), received: value("messages_received_total"),
		resumed: value("resume_lanes_total"), skipped: value("resume_rows_skipped_total"),
		duplicates: value("duplicates_detected_total"), givenUp: value("batches_given_up_total"),
		renewed: value("history_renewed_total"), reconnected: value("replication_reconnects_total"),
	}
	return true
}

// running says whether the process has not ended.
func (r *relay) running() bool {
	select {
	case <-r.Done():
		return false
	default:
		return true
	}
}

// stopped says whether the process is stopped by a signal: state T in /proc/PID/stat, after the name in brackets.
func (r *relay) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID()))
	_, state, found := bytes.Cut(stat, []byte(") "))
	return err == nil && found && state[0] == 'T'
}

// waitFor looks at a relay until a condition holds, and returns how long that took. It fails when the relay ends.
func (l *lab) waitFor(r *relay, what string, condition func(metrics) bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		if !r.running() {
			l.t.Fatalf("%s has ended while the lab waits for it to be %s:\n%s", r.name, what, tail(r.Output()))
		}
		if !r.look(ctx) || !condition(r.seen) {
			_, reason, err := r.Get(ctx, "/readyz")
			return errors.Join(fmt.Errorf("%s is not %s: %+v: %s", r.name, what, r.seen, reason), err)
		}
		return nil
	})
	return time.Since(began)
}

func leading(m metrics) bool { return m.leader && m.ready }

func standing(m metrics) bool { return !m.leader && m.ready }

// tail returns the last lines of a log.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// walsender returns the process id of the slot's walsender, 0 if the slot is free.
func (l *lab) walsender(ctx context.Context) (pid int, err error) {
	err = query(ctx, l.env.URL, `SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1`, &pid, l.env.Slot)
	return pid, err
}

// waitGone waits until the slot is free, or another one's than that walsender's.
func (l *lab) waitGone(of int) {
	l.t.Helper()
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		pid, err := l.walsender(ctx)
		if err == nil && pid == of {
			err = fmt.Errorf("walsender %d holds the slot", pid)
		}
		return err
	})
}

// waitFree waits until nobody holds the slot.
func (l *lab) waitFree() {
	l.t.Helper()
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		pid, err := l.walsender(ctx)
		if err == nil && pid != 0 {
			err = fmt.Errorf("walsender %d holds the slot", pid)
		}
		return err
	})
}
