package inboxkafka

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A broker that is down takes many partitions with it: one line when the first cannot be
// fetched, one when the last can be again.
func TestOneLineForAllPartitions(t *testing.T) {
	var log bytes.Buffer
	s := &stuck{log: slog.New(slog.NewTextHandler(&log, nil)), group: "g"}
	for range 2 {
		log.Reset()
		for i := range 3 {
			s.begins(newPartition("orders", i, 0, 1), errors.New("connection refused"))
		}
		s.ends()
		s.ends()
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "partition=0") {
			t.Errorf("%d lines while partitions cannot be fetched, want one:\n%s", n, log.String())
		}
		s.ends()
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "partitions=3") {
			t.Errorf("%d lines when all can be fetched again, want two:\n%s", n, log.String())
		}
	}
}
