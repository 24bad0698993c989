package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Nothing that formats or logs the configuration shows a secret.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:hunter2@h/db", "postgres://u@h/db?password=hunter2&sslpassword=hunter2", "postgres://u:hunter2?hunter2 #@h:bad port/%zz", "postgres://h?password=hunter2",
		"host=h password=hunter2", "host=h password = 'hunter2 it\\'s hunter2' user=u", "sslpassword=hunter2",
	} {
		c := Default()
		c.Postgres.URL = ConnString(url)
		c.Kafka.SASL.Password = "hunter2"
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", &c)
		for _, shown := range []string{log.String(), fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%q %s", c.Postgres.URL, c.Kafka.SASL.Password)} {
			if strings.Contains(shown, "hunter2") {
				t.Errorf("%s shows the password in %s", url, shown)
			}
		}
		if !strings.Contains(log.String(), `"postgres.slot":"cdc_relay"`) {
			t.Errorf("the log lacks the slot: %s", log.String())
		}
	}
}

// A connection string that cannot be used is told apart without quoting the password in it, however
// it is broken.
func TestBadURLsAreNotQuoted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:hunter2/3@h/db", "postgres://u:hunter2#3@h/db", "postgres://u:hunter2?3@h/db", "postgres://u:%hunter2@h/db",
		"postgres://u:hunter2%zz@h/db", "postgres://u:hunter2@h:port/db", "postgres://u:hunter2 @h/db", "postgres://u:hunter2[@h/db",
		"mysql://u:hunter2@h/db", "u:hunter2@h/db", "password=hunter2 nonsense", "password='hunter2", "host=h port=x password=hunter2",
		"postgres://u:hunter2@h/db?sslmode=hunter", "postgres://u:hunter2@h/db?connect_timeout=x", "postgres://u:hunter2@[::1/db",
		// Pieces that the driver takes for something else.
		"host=h password=a hunter2", "host=h password=a connect_timeout=hunter2", "postgres://u:a@hunter2@h/db", "postgres://u:1/hunter2@h/db",
	} {
		_, err := Load(Source{Environ: []string{"CDC_RELAY_POSTGRES_URL=" + url}}, Database)
		if err == nil {
			if strings.Contains(ConnString(url).String(), "hunter2") {
				t.Errorf("%s is accepted and shown", url)
			}
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the message shows the password: %v", url, err)
		}
		t.Log(err)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Bytes{
		"0": 0, "1048576": 1 << 20, "16MiB": 16 << 20, "16 MiB": 16 << 20, "3KiB": 3 << 10, "1GiB": 1 << 30, "512B": 512,
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "16MB", "16mib", "9999999999GiB", "one"} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestBytesRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Bytes(rapid.Int64Min(0).Draw(t, "bytes"))
		var got Bytes
		if err := got.UnmarshalText([]byte(want.String())); err != nil || got != want {
			t.Fatalf("%s: got %d, %v, want %d", want, got, err, want)
		}
	})
}
