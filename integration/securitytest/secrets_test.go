package securitytest

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A connection string that cannot be read is not repeated: what was taken for a host or a keyword may be a piece of the
// password.
func TestBrokenConnectionString(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = []string{"127.0.0.1:1"}
	for _, connString := range []string{
		"postgres://relay:" + password + "@127.0.0.1:5432/db",
		"postgres://relay:alpha7@bravo7@127.0.0.1:5432/db",
		"host=127.0.0.1 user=relay password=alpha7 bravo7",
	} {
		exits(t, env, testenv.Settings{"postgres.url": connString}, 78, "postgres.url", "percent-encoded")
		exits(t, env, testenv.Settings{"postgres.url": nil}, 78, "postgres.url", "percent-encoded", "--database-url", connString)
	}
}
