package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A relay that is about to put a row aside is stopped until another leads, which publishes the row, since the topic takes
// it by now. When the first one is woken it cannot give up on the row any more, with a fence or without one.
func TestZombieCannotDeadLetter(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]testenv.Settings{"fenced": nil, "not fenced": {"kafka.transactional_id": nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			topic := s.CreateTopic("order", 1, "max.message.bytes", "10000")
			old := s.start("dead_letter:1:stop", settings)
			old.is("leader")
			s.insert(2)
			large := s.tooLarge()
			s.insert(2)
			old.waitStopped()
			s.Set(topic, "max.message.bytes", "1048588")
			next := s.start("", settings)
			next.is("leader")
			want := slices.Concat(scene.Counted(1, 2), []string{large}, scene.Counted(3, 4))
			s.want(topic, want...)
			old.Signal(syscall.SIGCONT)
			old.is("standby")
			s.insert(2)
			s.want(topic, append(want, scene.Counted(5, 6)...)...)
			if letters := s.Letters(); len(letters) > 0 {
				t.Errorf("there are %d dead letters, the first is of %s: the row is on the topic, too", len(letters), letters[0].MessageID)
			}
			next.is("leader")
		})
	}
}

// The same without another relay: who has lost the slot, and not noticed, does not write to the dead letters either. It
// has to read the row once more.
func TestDeadLetterNeedsTheSlot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	topic := s.CreateTopic("order", 1, "max.message.bytes", "10000")
	r := s.start("dead_letter:1:stop", nil)
	r.is("leader")
	s.insert(2)
	s.tooLarge()
	s.insert(2)
	r.waitStopped()
	testenv.Until(t, patience, func(context.Context) error {
		if s.OfSlot("active") != "false" {
			return errors.New("the relay that is stopped has the slot")
		}
		return nil
	})
	r.Signal(syscall.SIGCONT)
	r.is("leader")
	s.insert(2)
	s.want(topic, scene.Counted(1, 6)...)
	s.WaitLetters("dead", 1)
	if s.Text(`SELECT created_at > (SELECT backend_start FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid
		WHERE slot_name = $1) FROM public.cdc_relay_dead_letter`, s.Slot) != "true" {
		t.Error("the dead letter was written before the relay had the slot again")
	}
}

// tooLarge commits a row that is larger than the topics of these tests take, and returns its value.
func (s *site) tooLarge() string {
	s.t.Helper()
	value := fmt.Sprintf("large %s", strings.Repeat("x", 20_000))
	s.Insert("order", "key", value)
	return value
}
