// Package pipeline_test runs the cdc-relay binary between real servers and looks at both ends.
package pipeline_test

import (
	"os"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
