package publish_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestZombieBetweenReadingAndWriting: a batch of the process before lands after the
// reading. The first batch is one row; its offset gives the other away; what lies
// between is read and not written again.
func TestZombieBetweenReadingAndWriting(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) { p.faults = []fault{requestLate} })
		r.putBatch(5) // Rows 5 to 9, which arrive with the next request.
		r.settle(10 * time.Millisecond)
		r.restart(3)
		r.replay(3)
		r.put(20)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 10)+" 5 "+sequenceOf(10, 30))
		r.wantMetric("duplicates_detected_total", 1)
		r.wantMetric("resume_rows_skipped_total", 6) // 3 and 4, then 6 to 9.
		r.wantNoReset()
		r.locked(func(p *modelPartition) {
			if got := p.sizes[len(p.sizes)-3:]; got[0] != 1 || got[1] != 1 || got[2] != 19 {
				t.Errorf("batches of %v rows, want one row after each reading", p.sizes)
			}
		})
	})
}

// TestZombieWritesOn: an earlier process that writes again and again is met with one
// row at a time.
func TestZombieWritesOn(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.restart(3)
		zombie := 2
		r.partition().onRead = func() { // After each reading it writes the next row.
			r.locked(func(p *modelPartition) {
				if r.m.fetches%2 == 1 && zombie < 5 {
					r.m.write(p, p.log[zombie])
					zombie++
				}
			})
		}
		r.replay(3)
		r.put(30)
		r.drain(time.Minute)
		r.wantNoReset()
		var firsts []string
		for v := range strings.FieldsSeq(r.values("t", 0)) {
			if !slices.Contains(firsts, v) {
				firsts = append(firsts, v)
			}
		}
		if got := strings.Join(firsts, " "); got != sequenceOf(0, 35) {
			t.Errorf("first copies %q", got)
		}
	})
}

// TestZombieOfAnotherHistory: what lands between the reading and the first row cannot
// lie beyond the horizon, unless it was written from another history.
func TestZombieOfAnotherHistory(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) { p.faults = []fault{requestLate} })
		r.putBatch(5)
		r.settle(10 * time.Millisecond)
		r.n = 8 // The server was restored: rows 8 and 9 have never been.
		r.restart(3)
		r.replay(3)
		r.wantHistoryError("it holds the position 0/3F1/0/9/r0, but the server's log ended at 0/3F0")
		if got := r.oldest(); got != 4 { // Row 5 is there, row 6 is not known to be.
			t.Errorf("oldest = %d, want 4", got)
		}
	})
}

// TestOthersBetweenReadingAndWriting: records of other writers change nothing.
func TestOthersBetweenReadingAndWriting(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.restart(3)
		r.m.latency = 100 * time.Millisecond
		r.replay(3)
		r.put(20)
		for range 30 {
			r.settle(10 * time.Millisecond)
			r.others(1)
		}
		r.drain(time.Minute)
		got := strings.Join(strings.Fields(strings.ReplaceAll(r.values("t", 0), "other", "")), " ")
		if got != sequenceOf(0, 25) {
			t.Errorf("t[0] holds %q", got)
		}
		r.wantMetric("duplicates_detected_total", 0)
		if r.requests() > 6 {
			t.Errorf("%d batches: one row at a time", r.requests())
		}
	})
}

// TestHiddenAboveTheHighWatermark: a batch of the process before that is not yet
// replicated is not read, but found by the offset of the first row.
func TestHiddenAboveTheHighWatermark(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) { p.hidden = 4 })
		r.restart(3)
		before := r.requests()
		r.replay(3)
		for r.requests() == before {
			r.settle(time.Microsecond)
		}
		r.locked(func(p *modelPartition) { p.hidden = 0 })
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 10)+" 6")
		r.wantMetric("duplicates_detected_total", 1)
	})
}

// TestGiveUp: a batch that cannot be repeated is given up in a new epoch, and the
// partition tells whether its rows are there.
func TestGiveUp(t *testing.T) {
	codes := map[string]fault{"45": outOfOrder, "46": duplicate, "59": unknownID}
	for name, code := range codes {
		for _, appended := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " appended", false: " not appended"}[appended], func(t *testing.T) {
				m := newModel("t", 1)
				run(t, publish.Config{}, m, func(r *rig) {
					r.put(5)
					r.drain(time.Second)
					r.locked(func(p *modelPartition) {
						p.faults = []fault{requestLost, code}
						if appended {
							p.faults[0] = answerLost
						}
					})
					r.putBatch(5)
					r.put(5)
					r.drain(time.Minute)
					r.wantValues("t", 0, sequenceOf(0, 15))
					r.wantMetric("batches_given_up_total", 1)
					r.wantNoReset()
					r.locked(func(p *modelPartition) {
						if got := p.producers[7].epoch; got != 1 {
							t.Errorf("epoch %d, want a new one", got)
						}
						if p.sizes[len(p.sizes)-2] != 1 {
							t.Errorf("batches of %v rows, want one row first", p.sizes)
						}
					})
				})
			})
		}
	}
}

// TestGiveUpFirstBatch: nothing is known of the partition when the very first batch
// is given up.
func TestGiveUpFirstBatch(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = []fault{answerLost, outOfOrder}
	run(t, publish.Config{}, m, func(r *rig) {
		r.others(100)
		r.putBatch(5)
		r.put(5)
		r.drain(time.Minute)
		if got := r.values("t", 0); !strings.HasSuffix(got, "other "+sequenceOf(0, 10)) {
			t.Errorf("t[0] ends with %q", got[len(got)-40:])
		}
	})
}

// TestLateCopyOfGivenUpBatch: a copy that is still under way lands before the new
// epoch is in the partition, and is found; or after, and is refused.
func TestLateCopyOfGivenUpBatch(t *testing.T) {
	tests := map[string]struct {
		after int // batches of the new epoch that are there
		want  string
	}{
		"before": {0, sequenceOf(0, 10) + " 5 " + sequenceOf(10, 15)},
		"after":  {1, sequenceOf(0, 15)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				var late [][]byte
				r.locked(func(p *modelPartition) { p.faults = []fault{requestLate, outOfOrder} })
				r.putBatch(5)
				for late == nil {
					r.settle(time.Millisecond)
					r.locked(func(p *modelPartition) { late, p.late = p.late, nil })
				}
				written := 0
				r.locked(func(p *modelPartition) { written = len(p.sizes) })
				r.partition().onRead = func() {
					r.locked(func(p *modelPartition) {
						if tt.after == 0 && p.late == nil {
							p.late, late = late, nil
						}
					})
				}
				for tt.after > 0 {
					r.settle(time.Millisecond)
					r.locked(func(p *modelPartition) {
						if len(p.sizes) == written+tt.after {
							p.late, tt.after = late, 0
						}
					})
				}
				r.put(5)
				r.drain(time.Minute)
				r.wantValues("t", 0, tt.want)
				r.wantNoReset()
			})
		})
	}
}

// TestUndecidedIsGivenUpToBeSplit: a refusal for size after an attempt without an
// answer proves nothing about that attempt: its rows are looked for first.
func TestUndecidedIsGivenUpToBeSplit(t *testing.T) {
	for name, first := range map[string]fault{"there": answerLost, "not there": requestLost} {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(1)
				r.drain(time.Second)
				r.locked(func(p *modelPartition) { p.faults = []fault{first} })
				r.putBatch(9)
				r.settle(2 * time.Millisecond)
				r.locked(func(*modelPartition) { m.maxBytes = 800 })
				r.put(3)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 13))
				r.wantMetric("batches_given_up_total", 1)
			})
		})
	}
}

// TestUnreadableUndecidedHalts: a batch is not given up while its partition cannot be
// read. The same bytes go out again, and may be acknowledged after all.
func TestUnreadableUndecidedHalts(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) {
			p.faults = []fault{requestLost, outOfOrder, outOfOrder}
			p.reads = slices.Repeat([]error{kafka.TopicAuthorizationFailed}, 1000)
		})
		r.putBatch(5)
		r.put(5)
		r.settle(40 * time.Second)
		if s := r.p.Snapshot(); len(s.Lanes) != 1 || !s.Lanes[0].Halted || !strings.Contains(s.Lanes[0].Reason, "cannot be read") {
			t.Errorf("lanes %+v, want one halted", s.Lanes)
		}
		r.drain(5 * time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 15))
		r.locked(func(p *modelPartition) {
			if got := p.producers[7]; got.epoch != 1 || got.recent[0].first != 0 {
				t.Errorf("epoch %d from number %d, want the one that was raised from 0", got.epoch, got.recent[0].first)
			}
		})
	})
}

// TestPastBatchGivenUp: a batch of a session that is over is not searched for: its
// rows come again, and the lane reads before it writes them, whether resuming is on
// or not.
func TestPastBatchGivenUp(t *testing.T) {
	for _, cfg := range []publish.Config{{}, resuming()} {
		m := newModel("t", 1)
		run(t, cfg, m, func(r *rig) {
			r.put(5)
			r.drain(time.Second)
			r.locked(func(p *modelPartition) { p.faults = []fault{answerLost, outOfOrder} })
			r.putBatch(5)
			r.settle(2 * time.Millisecond)
			r.p.End()
			r.settle(time.Minute)
			r.reconnect(3)
			r.replay(3)
			r.put(3)
			r.drain(time.Minute)
			r.wantValues("t", 0, sequenceOf(0, 13))
			r.wantMetric("batches_given_up_total", 1)
			r.wantNoReset()
		})
	}
}

// TestSessionEndsDuringSearch: the same, while the partition is being read.
func TestSessionEndsDuringSearch(t *testing.T) {
	for name, last := range map[string]fault{"search": outOfOrder, "swallowed": oldOffset} {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				r.locked(func(p *modelPartition) {
					p.faults = []fault{answerLost, last}
					p.reads = slices.Repeat([]error{kafka.OffsetNotAvailable}, 10)
				})
				r.putBatch(5)
				r.settle(2 * time.Second)
				r.reconnect(3)
				r.replay(3)
				r.put(3)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 13))
				r.wantNoReset()
			})
		})
	}
}

// TestHigherEpochHalts: without a transactional id nobody but this process raises the
// epoch.
func TestHigherEpochHalts(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = []fault{fencedOff}
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(3)
		r.settle(time.Second)
		if s := r.p.Snapshot(); len(s.Lanes) != 1 || !s.Lanes[0].Halted {
			t.Errorf("lanes %+v, want one halted", s.Lanes)
		}
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 3))
	})
}

// TestSwallowed: an acknowledgement with an offset that is not new, where the rows
// are not, makes the lane publish them again, in a new epoch from 0.
func TestSwallowed(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) { p.faults = []fault{oldOffset} })
		r.putBatch(3)
		r.put(2)
		r.drain(time.Second)
		r.wantValues("t", 0, sequenceOf(0, 10))
		r.wantNoReset()
		r.locked(func(p *modelPartition) {
			if got := p.producers[7]; got.epoch != 1 || got.recent[0].first != 0 {
				t.Errorf("epoch %d from number %d, want a new one from 0", got.epoch, got.recent[0].first)
			}
		})
		if r.logged("acknowledged offset is not new") != 1 {
			t.Errorf("logged %s", r.log.String())
		}
	})
}

// TestSwallowedUnreadable: likewise where that cannot be looked up.
func TestSwallowedUnreadable(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) {
			p.faults = []fault{oldOffset}
			p.reads = []error{kafka.TopicAuthorizationFailed}
		})
		r.put(1)
		r.drain(time.Second)
		r.wantValues("t", 0, sequenceOf(0, 6))
	})
}

// TestPartitionWentBack: the partition was made again, or has lost records: the
// history is given up, whether that shows by an acknowledgement or a reading.
func TestPartitionWentBack(t *testing.T) {
	tests := map[string]func(r *rig){
		"made again, acknowledged":         func(r *rig) { r.m.topics["t"][0] = newPartition(); r.put(1) },
		"made again, others, acknowledged": func(r *rig) { r.m.topics["t"][0] = newPartition(); r.others(3); r.put(1) },
		"made again, filled, acknowledged": func(r *rig) {
			r.m.topics["t"][0] = newPartition()
			r.m.latency = 50 * time.Millisecond
			r.others(3)
			r.putBatch(1)
			r.settle(60 * time.Millisecond)
			r.others(10)
		},
		"truncated, undecided": func(r *rig) {
			r.locked(func(p *modelPartition) { p.log = p.log[:3]; p.faults = []fault{outOfOrder} })
			r.put(1)
		},
		"truncated, reconnected": func(r *rig) {
			r.locked(func(p *modelPartition) { p.log = p.log[:3] })
			r.n += 2
			r.reconnect(4)
			r.replay(4)
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				change(r)
				r.settle(time.Second)
				if r.oldest() == 0 {
					t.Error("nothing holds the position")
				}
				r.wantHistoryError("acknowledged at offset")
				r.session.History++
				r.begin()
				r.replay(0)
				r.put(2)
				r.drain(time.Minute)
				if got := r.values("t", 0); !strings.HasSuffix(got, " "+sequenceOf(0, r.n)) {
					t.Errorf("t[0] holds %q", got)
				}
			})
		})
	}
}

// TestReconnectReadsBetween: after a reconnect the lane compares the end of its
// partition with its last record, and reads what somebody else has written since.
func TestReconnectReadsBetween(t *testing.T) {
	tests := map[string]struct {
		between func(r *rig)
		want    string
		fetches int
	}{
		"nothing": {func(*rig) {}, sequenceOf(0, 16), 1},
		"others":  {func(r *rig) { r.others(3) }, sequenceOf(0, 10) + " other other other " + sequenceOf(10, 16), 2},
		"ours": {func(r *rig) { // A zombie, which had read further.
			r.locked(func(p *modelPartition) {
				rec := p.log[9]
				for i := 10; i < 13; i++ {
					now := r.record(i, "t", "key")
					rec.value, rec.stamp.Position, rec.stamp.IDHash = string(now.Value), now.Position, position.HashID(now.ID)
					rec.header = rec.stamp.AppendText(nil)
					r.m.write(p, rec)
				}
			})
		}, sequenceOf(0, 16), 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(10)
				r.drain(time.Second)
				tt.between(r)
				r.n = 14
				before := r.fetches()
				r.reconnect(5)
				r.replay(5)
				r.put(2)
				r.drain(time.Minute)
				r.wantValues("t", 0, tt.want)
				if got := r.fetches() - before; got != tt.fetches {
					t.Errorf("%d requests to read, want %d", got, tt.fetches)
				}
				r.wantNoReset()
			})
		})
	}
}
