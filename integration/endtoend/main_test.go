// Package endtoend_test writes events into an outbox and counts their effects in the database of a consumer, while
// everything between the two is killed at random: the relay, the broker, the consumers and their database.
//
// The flags make the test long, as "make soak" does. What it prints is its evidence: the seed, each fault with its time,
// and the count. The same seed gives the same faults in the same order; what they meet differs from run to run.
package endtoend_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var (
	seed     = flag.Uint64("endtoend.seed", 1, "decides the faults")
	duration = flag.Duration("endtoend.duration", 35*time.Second, "how long the faults go on")
	away     = flag.Duration("endtoend.away", 3*time.Second, "how long the consumers' database is away in TestDatabaseAway")
	rate     = flag.Int("endtoend.rate", 300, "most events a second")
)

func TestMain(m *testing.M) {
	if code, was := consumer.Main(); was {
		os.Exit(code)
	}
	os.Exit(testenv.Main(m))
}

// patience is for what takes a few seconds on an idle machine.
const patience = 2 * time.Minute
