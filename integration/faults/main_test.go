// Package faults_test is the fault lab: a relay, or two, between a workload and a judge that shares no code with it,
// on real servers, while everything around it fails in an order that a seed decides.
//
// The flags make the tests long, as "make soak" does. What a test prints is its evidence: the seed, each fault with its
// time, a line for each round, and the judge's report. The same seed gives the same workload and the same faults in the
// same order; what they meet is a matter of microseconds and differs.
package faults_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var (
	seed     = flag.Uint64("faults.seed", 1, "decides the workload and the faults")
	duration = flag.Duration("faults.duration", 2*time.Minute, "how long TestLab goes on with faults")
	only     = flag.String("faults.only", "", "part of the names of the faults that TestLab is to keep to")
	rate     = flag.Int("faults.rate", 2500, "most rows per second of the workload")
	kills    = flag.Int("faults.kills", 12, "rounds of TestKillRounds that count")
	poison   = flag.Int("faults.poison", 8, "rounds of TestKillRoundsWithPoison that count")
	replays  = flag.Int("faults.replays", 1000, "dead letters that TestReplayUnderLoad replays")
	zombies  = flag.Int("faults.zombies", 3, "rounds of TestZombieRounds")
	logs     = flag.String("faults.logs", "", "directory that takes the log of every relay")
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is for what takes a second or two on an idle machine.
const patience = time.Minute

// pause waits for d or for the end of the test.
func pause(ctx context.Context, d time.Duration) {
	_ = testenv.Pause(ctx, d) // A test that has ended fails at its next step.
}
