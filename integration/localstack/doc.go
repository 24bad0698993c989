// Package localstack runs the servers that cdc-relay stands between, on this machine, without containers: real
// PostgreSQL of each supported major version from published binaries, real Kafka from its published jars, and a broker
// inside the calling process for where there is no Java.
//
// Everything downloaded is kept in [CacheDir]. Everything running lives in a directory of its own under the temporary
// directory; it ends with the process that started it, however that ends, and what a killed process leaves on disk is
// removed by the next one. The demo and the tests use this package; it imports nothing of cdc-relay's.
//
// It works on Linux and macOS, under any user. PostgreSQL refuses to run as root, so root runs it as user 65534.
package localstack

import (
	"os"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// Progress receives one line of text, without a line end, whenever something slow begins or goes on: a download, an
// unpacking. It may be called from another goroutine, never concurrently.
type Progress func(line string)

func (p Progress) say(line string) {
	if p != nil {
		p(line)
	}
}

// logTail returns the end of a log file, for an error message.
func logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return process.Tail(string(text))
}
