// Package inboxkafkatests tests package inboxkafka on a real broker and a real PostgreSQL.
package inboxkafkatests

import (
	"os"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
