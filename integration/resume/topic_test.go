package resume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Whatever stands behind our last records, the relay looks past it.
func TestForeignTail(t *testing.T) {
	for name, tail := range map[string]func(*story){
		"other writers": func(s *story) { s.put(strangers(250), false, false) },
		"transaction markers": func(s *story) {
			s.put(strangers(1), true, true)
			s.put(strangers(1), true, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.crash()
			tail(s)
			s.restart()
			s.once()
		})
	}
}

// What the topic no longer holds in front of our last records changes nothing.
func TestHeadDeleted(t *testing.T) {
	for name, remove := range map[string]func(*story){
		"compaction": compact,
		"deletion": func(s *story) {
			below := s.Ends(s.topics[0])
			for i := range below {
				below[i]--
			}
			s.DeleteRecords(s.topics[0], below)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.crash()
			remove(s)
			s.restart()
			s.once()
		})
	}
}

// compact has the broker compact the topic: only the last record of each key is left.
func compact(s *story) {
	topic := s.topics[0]
	for name, value := range map[string]string{
		"min.cleanable.dirty.ratio": "0", "segment.ms": "1", "cleanup.policy": "compact",
	} {
		s.Set(topic, name, value)
	}
	perKey := map[string]bool{}
	for _, r := range s.before {
		perKey[r.key] = true
	}
	testenv.Until(s.t, patience, func(context.Context) error {
		s.put(strangers(1), false, false) // What is appended last is never compacted.
		if n := len(s.read(nil)); n > len(perKey) {
			return fmt.Errorf("%d records of %d keys", n, len(perKey))
		}
		return nil
	})
	s.Set(topic, "cleanup.policy", "delete")
}

// Where our last records are gone, nothing says what they were: everything that is not confirmed comes again.
func TestTailGone(t *testing.T) {
	for name, remove := range map[string]func(*story){
		"retention": func(s *story) {
			s.Set(s.topics[0], "retention.ms", "1")
			s.empty()
			s.Set(s.topics[0], "retention.ms", "-1")
		},
		"deletion": func(s *story) {
			s.DeleteRecords(s.topics[0], slices.Repeat([]int64{-1}, partitions))
			s.empty()
		},
		"topic made again": func(s *story) {
			s.Drop(s.topics[0])
			s.CreateTopic("order", partitions)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.crash()
			remove(s)
			s.restart()
			s.all()
		})
	}
}

// empty waits until the topic has no record.
func (s *story) empty() {
	s.t.Helper()
	testenv.Until(s.t, patience, func(context.Context) error {
		if !slices.Equal(s.Starts(s.topics[0]), s.Ends(s.topics[0])) {
			return errors.New("the topic has records")
		}
		return nil
	})
}

// Without resume, or where it may not read or not far enough, delivery is plain at-least-once: what is not confirmed
// comes again, under the same id.
func TestPlainAtLeastOnce(t *testing.T) {
	for name, change := range map[string]func(*story){
		"turned off": func(s *story) { s.settings["resume.enabled"] = false },
		"too many records": func(s *story) {
			s.settings["resume.max_records"] = 100
			s.put(strangers(150), false, false)
		},
		"too many bytes": func(s *story) {
			s.settings["resume.max_bytes"] = "1MiB"
			s.put(large(), false, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.crash()
			change(s)
			s.restart()
			s.all()
		})
	}
}

// large is more than 1 MiB of another producer for each partition.
func large() (records []*kgo.Record) {
	for range 300 {
		for p := range int32(partitions) {
			records = append(records, &kgo.Record{Partition: p, Key: []byte(foreign), Value: make([]byte, 4<<10)})
		}
	}
	return records
}

// A user who may write a topic and not read it is told once what that costs.
func TestNoReadPermission(t *testing.T) {
	s := newStory(t)
	s.Grant(user, s.topics[0], kmsg.ACLOperationWrite)
	s.settings["kafka.brokers"] = kafka(t).AddrsOf(localstack.SASLPlaintext)
	s.settings["kafka.sasl.mechanism"] = "SCRAM-SHA-256"
	s.settings["kafka.sasl.username"], s.settings["kafka.sasl.password"] = user, password
	s.crash()
	s.restart()
	s.all()
	warnings := 0
	for line := range strings.Lines(s.again.Output()) {
		if strings.Contains(line, `"level":"WARN"`) && strings.Contains(line, s.topics[0]) {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings about the topic, want one", warnings)
	}
	if lanes := scene.Metric(t, s.again, "cdc_relay_resume_lanes_total"); lanes != 0 {
		t.Errorf("%v lanes were resumed, want none", lanes)
	}
}
