package checkpoint_test

import (
	"math/rand/v2"
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/checkpoint"
)

const (
	schedules     = 24_000
	shards        = 8
	scheduleSteps = 150
)

func newReal(start pglogrepl.LSN) watermark { return checkpoint.New(start) }

func seeded(seed uint64) func(int) int {
	return rand.New(rand.NewPCG(seed, 0)).IntN
}

// TestSchedules plays the same schedules in every run; the message names the seed.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for shard := range uint64(shards) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < schedules; seed += shards {
				if err := runSchedule(scheduleSteps, seeded(seed), "", newReal); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// TestRandomSchedules plays other schedules in every run, and shrinks what fails.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		if err := runSchedule(scheduleSteps, pick, "", newReal); err != nil {
			t.Fatal(err)
		}
	})
}

// TestMutants breaks one rule at a time, to show that the schedules would notice.
func TestMutants(t *testing.T) {
	t.Parallel()
	tests := map[string]func(pglogrepl.LSN) watermark{
		bugMaximum: newReal, bugLateLane: newReal, bugSurvives: newReal, bugEarlyCommit: newReal,
	}
	for _, bug := range []string{
		bugKeepaliveOpen, bugKeepaliveUnsettled, bugKeepaliveForgotten, bugOffByOne, bugNewest, bugBackwards, bugMergeRows, bugNoMerge, bugNewestWins,
	} {
		tests[bug] = func(start pglogrepl.LSN) watermark { return &mutant{bug: bug, confirmed: start} }
	}
	for bug, newWatermark := range tests {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(schedules) {
				if err := runSchedule(scheduleSteps, seeded(seed), bug, newWatermark); err != nil {
					t.Logf("caught with seed %d: %v", seed, err)
					return
				}
			}
			t.Error("no schedule noticed")
		})
	}
}

// TestMutantWithoutBug shows that the mutants fail for their bug and nothing else.
func TestMutantWithoutBug(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		newWatermark := func(start pglogrepl.LSN) watermark { return &mutant{confirmed: start} }
		if err := runSchedule(scheduleSteps, seeded(seed), "", newWatermark); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
