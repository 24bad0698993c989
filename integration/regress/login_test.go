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
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	s.setPassword("first")
	r := s.start(s.login("first"))
	s.settled(s.insert(1, 1, 0))
	s.setPassword("second")
	says(t, r, 503, "kafka.sasl") // The broker asks for a new login within seconds.
	within := s.insert(2, 50, 0)
	lines := strings.Count(r.Output(), "\n")
	every(500*time.Millisecond, 4*time.Second, func() { s.held(within) })
	if n := strings.Count(r.Output(), "\n") - lines; n > 2 {
		t.Errorf("%d lines in four seconds:\n%s", n, r.Output())
	}
	if out := r.Output(); strings.Contains(out, "first") || strings.Contains(out, "second") {
		t.Error("a password is in the log")
	}
	s.setPassword("first")
	r.WaitReady(patience)
	s.settled(within)
	s.settled(s.insert(51, 51, 0))
	s.once(topic, 51)
	s.stop(r)
}

// Brokers that let a user write only so much make the relay slow, and cost it neither its place at the server nor repeats.
func TestProducerQuota(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	s.setPassword("secret")
	settings := s.login("secret")
	settings["postgres.wal_sender_timeout"], settings["limits.in_flight_bytes"] = shortTimeout.String(), "256KiB"
	settings["kafka.max_message_bytes"] = "32KiB"
	r := s.start(settings)
	s.limitUser(100 << 10)
	sender := s.slot("active_pid")
	began := time.Now()
	rows := 600 * *scale
	s.settled(s.insert(1, rows, 1000))
	took := time.Since(began)
	t.Logf("%d KB at 100 KB/s took %v", rows, took.Round(time.Millisecond))
	if took < 2*shortTimeout {
		t.Errorf("took %v: the quota was not in force", took)
	}
	if now := s.slot("active_pid"); now != sender {
		t.Errorf("walsender %s became %s", sender, now)
	}
	s.settled(s.insert(rows+1, rows+1, 0))
	s.once(topic, rows+1)
	s.stop(r)
}

// login are settings for a user of the scene's own.
func (s *scene) login(password string) testenv.Settings {
	return testenv.Settings{
		"kafka.brokers":        broker(s.t).kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": s.Slot, "kafka.sasl.password": password,
	}
}

// setPassword makes the scene's user, or changes its password.
func (s *scene) setPassword(password string) {
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
	response, err := request.RequestWith(s.t.Context(), s.client())
	if err == nil {
		err = kerr.ErrorForCode(response.Results[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// limitUser sets the scene's user a quota.
func (s *scene) limitUser(bytesPerSecond float64) {
	s.t.Helper()
	user := kmsg.NewAlterClientQuotasRequestEntryEntity()
	user.Type, user.Name = "user", &s.Slot
	quota := kmsg.NewAlterClientQuotasRequestEntryOp()
	quota.Key, quota.Value = "producer_byte_rate", bytesPerSecond
	entry := kmsg.NewAlterClientQuotasRequestEntry()
	entry.Entity, entry.Ops = append(entry.Entity, user), append(entry.Ops, quota)
	request := kmsg.NewPtrAlterClientQuotasRequest()
	request.Entries = append(request.Entries, entry)
	response, err := request.RequestWith(s.t.Context(), s.client())
	if err == nil {
		err = kerr.ErrorForCode(response.Entries[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) client() *kgo.Client {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	return client
}
