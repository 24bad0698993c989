package publish_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

func resuming() publish.Config { return publish.Config{Resume: true} }

// sequenceOf is the values from to to-1, as wantValues spells them.
func sequenceOf(from, to int) string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return strings.Join(out, " ")
}

// partition is t[0].
func (r *rig) partition() *modelPartition { return r.m.topics["t"][0] }

// locked runs f with the model's lock.
func (r *rig) locked(f func(p *modelPartition)) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	f(r.partition())
}

func (r *rig) fetches() (n int) {
	r.locked(func(*modelPartition) { n = r.m.fetches })
	return n
}

func (r *rig) wantMetric(name string, want float64) {
	r.t.Helper()
	if got := r.metric("cdc_relay_" + name); got != want {
		r.t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func (r *rig) wantNoReset() {
	r.t.Helper()
	select {
	case err := <-r.p.Reset():
		r.t.Errorf("a new session is asked for: %v", err)
	default:
	}
}

// others appends records of other writers.
func (r *rig) others(n int) {
	r.locked(func(p *modelPartition) {
		for range n {
			r.m.write(p, modelRecord{value: "other"})
		}
	})
}

// copyRecord appends a copy of t[0]'s record at an offset to a partition of t.
func (r *rig) copyRecord(offset, to int) {
	r.locked(func(p *modelPartition) { r.m.write(r.m.topics["t"][to], p.log[offset]) })
}

// TestResume: a new process goes on behind what the one before has published, though
// less was confirmed, and begins with one row.
func TestResume(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.restart(3)
		r.replay(3)
		r.put(20)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 30))
		r.wantMetric("resume_lanes_total", 1)
		r.wantMetric("resume_rows_skipped_total", 7)
		r.wantMetric("duplicates_detected_total", 0)
		r.wantNoReset()
		r.locked(func(p *modelPartition) {
			if i := slices.Index(p.sizes, 1); i < 0 || i == len(p.sizes)-1 {
				t.Errorf("batches of %v rows: none of one row first", p.sizes)
			}
		})
	})
}

// TestResumeHalfWay: the rows that the tail does not hold are published.
func TestResumeHalfWay(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.alive.Store(false) // Like a process that is killed before it writes.
		r.put(5)
		r.kill()
		r.alive.Store(true)
		r.restart(8)
		r.replay(8)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 15))
	})
}

// TestNothingToSkip: a tail from before the session's start says nothing about its
// rows, nor does one without a record of ours.
func TestNothingToSkip(t *testing.T) {
	for name, others := range map[string]int{"older": 0, "other writers": 500} {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				r.others(others)
				r.put(1)
				r.drain(time.Second)
				r.n = 10 // Row 6 is never sent: it lies in a table that was removed.
				r.restart(6)
				before := r.fetches()
				r.replay(7)
				r.put(2)
				r.drain(time.Minute)
				if r.fetches() == before {
					t.Error("the partition was not read")
				}
				if got := r.values("t", 0); !strings.HasSuffix(got, "5 7 8 9 10 11") {
					t.Errorf("t[0] ends with %q", got[max(0, len(got)-40):])
				}
				r.wantMetric("resume_lanes_total", 0)
				r.wantNoReset()
			})
		})
	}
}

// TestPastTheHorizonAGlance: what commits after the slot was acquired cannot have been
// published, so no more than the end of the partition is read, once.
func TestPastTheHorizonAGlance(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(3)
		r.drain(time.Second)
		r.restart(3)
		before := r.fetches()
		r.put(3)
		r.drain(time.Second)
		if got := r.fetches() - before; got != 2 {
			t.Errorf("%d requests to read", got)
		}
		r.wantMetric("resume_lanes_total", 0)
		r.reconnect(6)
		r.put(3)
		r.drain(time.Second)
		if got := r.fetches() - before; got != 2 {
			t.Errorf("%d requests to read after the connection was lost", got)
		}
		r.wantValues("t", 0, sequenceOf(0, 9))
	})
}

// TestPastTheHorizonAnotherHistory: the server sends nothing that was published, but
// the end of the partition shows that it should have.
func TestPastTheHorizonAnotherHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		start, walEnd int
		reason        string
	}{
		"its log is not so far":      {1, 2, "the server's log ended at 0/3EA when the slot was acquired"},
		"its log has come as far":    {1, 3, "the server sent the row at 0/3EB/0/9/r0 first"},
		"all that was is confirmed":  {3, 3, ""},
		"confirmed, and more beyond": {3, 9, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(3)
				r.drain(time.Second)
				r.kill()
				r.launch()
				r.session.Start, r.session.WALEnd = commitAt(tc.start), commitAt(tc.walEnd)
				r.begin()
				r.put(1)
				if tc.reason != "" {
					r.wantHistoryError(tc.reason)
					return
				}
				r.drain(time.Minute)
				r.wantNoReset()
				r.wantValues("t", 0, sequenceOf(0, 4))
			})
		})
	}
}

// TestResumeOff: everything that was not confirmed is published again, unread.
func TestResumeOff(t *testing.T) {
	run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.restart(2)
		r.replay(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3 4 2 3 4")
		if r.fetches() != 0 {
			t.Error("the partition was read")
		}
	})
}

// TestProvisionalRowsHoldThePosition: rows passed over take no memory, and are not
// settled before the anchor's own row has come by.
func TestProvisionalRowsHoldThePosition(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(100)
		r.drain(time.Second)
		r.restart(10)
		for i := 10; i < 99; i++ {
			r.publish(r.record(i, "t", "key"))
		}
		r.p.Passed(commitAt(99)) // Not past the anchor, which commits there.
		r.settle(time.Minute)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d while the anchor is not proved, want 1", got)
		}
		s := r.p.Snapshot()
		if s.Rows != 0 || s.Bytes != 0 || len(s.Lanes) != 1 || s.Lanes[0].Skipped != 89 {
			t.Errorf("%d rows and %d bytes held, lanes %+v, want 89 skipped", s.Rows, s.Bytes, s.Lanes)
		}
		r.publish(r.record(99, "t", "key"))
		r.drain(time.Second)
		r.wantValues("t", 0, sequenceOf(0, 100))
		r.wantNoReset()
	})
}

// TestAnchorNotProved: whatever shows that the partition was not written from this
// server's log ends the session, with nothing settled and nothing sent, and under
// another history everything is published.
func TestAnchorNotProved(t *testing.T) {
	other := func(r *rig, i int) *publish.Record {
		rec := r.record(i, "t", "key")
		rec.ID = fmt.Appendf(nil, "other-%d", i)
		rec.Value = fmt.Appendf(nil, "other-%d", i)
		return rec
	}
	tests := map[string]struct {
		reason string
		play   func(r *rig)
	}{
		"another row at the position": {"the server's row there is another one", func(r *rig) {
			r.publish(r.record(5, "t", "key"))
			for i := 6; i < 12; i++ {
				r.publish(other(r, i))
			}
		}},
		"a later row first": {"the server sent the row at 0/3F2", func(r *rig) {
			r.publish(r.record(5, "t", "key"))
			r.publish(other(r, 10))
		}},
		"passed without it": {"the server has sent everything up to 0/3F2", func(r *rig) {
			r.publish(r.record(5, "t", "key"))
			r.settle(time.Second)
			r.p.Passed(commitAt(9))
			r.settle(time.Second)
			r.wantNoReset()
			r.p.Passed(commitAt(10))
		}},
		"passed before the reading": {"the server has sent everything up to 0/3F3", func(r *rig) {
			r.publish(r.record(5, "t", "key"))
			r.p.Passed(commitAt(11))
		}},
		"beyond the WAL end": {"the server's log ended at 0/3EF", func(r *rig) {
			r.session.WALEnd = commitAt(7)
			r.begin()
			r.publish(r.record(5, "t", "key"))
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(10)
				r.drain(time.Second)
				r.restart(5)
				r.session.WALEnd += 10
				r.begin()
				before := r.requests()
				tt.play(r)
				r.settle(time.Second)
				if got := r.oldest(); got != 1 {
					t.Errorf("oldest = %d, want 1", got)
				}
				if len(r.p.Snapshot().Problems()) == 0 {
					t.Error("no problem is shown")
				}
				r.wantHistoryError(tt.reason)
				if got := r.requests(); got != before {
					t.Errorf("%d batches were sent", got-before)
				}
				r.session.History++
				r.begin()
				for i := 5; i < 12; i++ {
					r.publish(other(r, i))
				}
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 10)+" other-5 other-6 other-7 other-8 other-9 other-10 other-11")
			})
		})
	}
}

// TestForeignTail: records of another history, routing or partition count, of a lower
// timeline, without header or with one of another format say nothing about the
// lane's rows: these are published again.
func TestForeignTail(t *testing.T) {
	tests := map[string]func(r *modelRecord){
		"history":         func(r *modelRecord) { r.stamp.History++ },
		"fingerprint":     func(r *modelRecord) { r.stamp.Fingerprint++ },
		"partition count": func(r *modelRecord) { r.stamp.Partitions++ },
		"lower timeline":  func(r *modelRecord) { r.stamp.Timeline-- },
		"no header":       func(r *modelRecord) { r.header = nil },
		"malformed":       func(r *modelRecord) { r.header = []byte("1.x") },
		"later format":    func(r *modelRecord) { r.header[0]++ },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(10)
				r.drain(time.Second)
				r.locked(func(p *modelPartition) {
					for i := range p.log {
						before := p.log[i].stamp
						if change(&p.log[i]); p.log[i].stamp != before {
							p.log[i].header = p.log[i].stamp.AppendText(nil)
						}
					}
				})
				r.restart(5)
				r.replay(5)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 10)+" "+sequenceOf(5, 10))
				r.wantNoReset()
			})
		})
	}
}

// TestHigherTimeline: the old primary is back, and nothing is published from it.
func TestHigherTimeline(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.session.Timeline--
		r.restart(5)
		before := r.requests()
		r.replay(5)
		r.settle(time.Minute)
		var timeline *publish.TimelineError
		select {
		case err := <-r.p.Reset():
			if !errors.As(err, &timeline) || timeline.Timeline != 3 || timeline.Topic != "t" {
				t.Errorf("Reset = %v, want a *TimelineError", err)
			}
		default:
			t.Error("the session goes on")
		}
		if r.requests() != before || r.oldest() != 1 {
			t.Error("rows were published or settled")
		}
		if p := r.p.Snapshot().Problems(); len(p) != 1 || !strings.Contains(p[0], "timeline 3") {
			t.Errorf("problems %q", p)
		}
	})
}

// TestHighestPositionCounts: not the newest. Older rows may have been written again
// behind it.
func TestHighestPositionCounts(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		for i := 4; i < 8; i++ {
			r.copyRecord(i, 0)
		}
		r.restart(3)
		r.replay(3)
		r.put(1)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 10)+" 4 5 6 7 10")
	})
}

// TestCopiedToAnotherPartition: a tool has copied our records with their headers. No
// row of that partition's lane is passed over for good.
func TestCopiedToAnotherPartition(t *testing.T) {
	run(t, resuming(), newModel("t", 2), func(r *rig) {
		keys := r.keys(2)
		for range 10 {
			r.publish(r.record(r.n, "t", keys[0]))
			r.n++
		}
		r.drain(time.Second)
		for i := range 10 {
			r.copyRecord(i, 1)
		}
		r.restart(2)
		r.publish(r.record(3, "t", keys[1])) // It had not been published.
		r.p.Passed(commitAt(r.n))
		r.wantHistoryError("without it")
		r.session.History++
		r.begin()
		r.publish(r.record(3, "t", keys[1]))
		r.drain(time.Minute)
		r.wantValues("t", 1, sequenceOf(0, 10)+" 3")
	})
}

// keys returns a key for each of n partitions.
func (r *rig) keys(n int) []string {
	out := make([]string, n)
	for i := 0; slices.Contains(out, ""); i++ {
		key := fmt.Sprint("key", i)
		out[publish.PartitionOf([]byte(key), n)] = key
	}
	return out
}

// TestUnprovedAnchorIsFoundAgain: what a session has not proved is no knowledge.
func TestUnprovedAnchorIsFoundAgain(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.restart(5)
		r.publish(r.record(5, "t", "key"))
		r.publish(r.record(6, "t", "key"))
		r.settle(time.Second)
		r.reconnect(5)
		if _, any := r.p.Oldest(); any {
			t.Error("rows of the past session hold the position")
		}
		r.replay(5)
		r.put(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 12))
	})
}

// TestAnchorAmongEquals: rows of one transaction share its commit; the anchor's own
// row decides, not its commit.
func TestAnchorAmongEquals(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		row := func(i int) *publish.Record {
			rec := r.record(i, "t", "key")
			rec.Position = position.Position{Commit: 5000, LSN: 9, Kind: position.Row, Index: uint32(i)}
			return rec
		}
		for i := range 4 {
			r.publish(row(i))
		}
		r.drain(time.Second)
		r.n = 5000
		r.restart(3000)
		for i := range 8 {
			r.publish(row(i))
		}
		r.p.Passed(5001)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 8))
		r.wantNoReset()
	})
}
