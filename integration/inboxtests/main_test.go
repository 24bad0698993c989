// Package inboxtests tests package inbox on a real PostgreSQL.
package inboxtests

import (
	"os"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
