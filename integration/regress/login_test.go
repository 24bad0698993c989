package regress_test

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A password that is changed at the brokers while the relay runs is nobody's row's fault: nothing is confirmed, the
// brokers are not hammered with logins, and the rows go on once the old one holds again (a halt looks every 30 seconds).
func TestPasswordChanged(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	s.setPassword("first")
	r := s.Start(s.login("first"))
	s.Settled(s.insert(1, 1, 0))
	s.setPassword("second")
	says(t, r, 503, "kafka.sasl") // The broker asks for a new login within seconds.
	within := s.insert(2, 50, 0)
	lines := strings.Count(r.Output(), "\n")
	every(500*time.Millisecond, 4*time.Second, func() { s.Held(within) })
	if n := strings.Count(r.Output(), "\n") - lines; n > 2 {
		t.Errorf("%d lines in four seconds:\n%s", n, r.Output())
	}
	if out := r.Output(); strings.Contains(out, "first") || strings.Contains(out, "second") {
		t.Error("a password is in the log")
	}
	s.setPassword("first")
	r.WaitReady(patience)
	s.Settled(within)
	s.Settled(s.insert(51, 51, 0))
	s.once(topic, 51)
	s.Stop(r)
}

// login are settings for a user of the scene's own.
func (s *stage) login(password string) testenv.Settings {
	return testenv.Settings{
		"kafka.brokers":        broker(s.t).Kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": s.Slot, "kafka.sasl.password": password,
	}
}

// setPassword makes the scene's user, or changes its password.
func (s *stage) setPassword(password string) {
	s.t.Helper()
	const iterations, sha256Mechanism = 4096, 1
	salt := []byte("some salt of one")
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		s.t.Fatal(err)
	}
	user := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	user.Name, user.Mechanism, user.Iterations, user.Salt, user.SaltedPassword = s.Slot, sha256Mechanism, iterations, salt, salted
	request := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	request.Upsertions = append(request.Upsertions, user)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	response, err := request.RequestWith(s.t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(response.Results[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
