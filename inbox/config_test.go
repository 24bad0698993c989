package inbox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestConfigSaysAllThatIsWrong(t *testing.T) {
	_, err := New(Config{
		MaxDeliveries: -1, Backoff: Backoff{Initial: time.Minute, Max: time.Second}, Order: 9,
		TxOptions: pgx.TxOptions{AccessMode: pgx.ReadOnly},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Consumer", "Pool", "Handler", "MaxDeliveries", "Backoff", "Order", "ReadOnly"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	p, err := New(Config{Consumer: "shipping", Pool: &pgxpool.Pool{}, Handler: func(context.Context, pgx.Tx, *Message) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if p.Consumer() != "shipping" || p.Retention() != 7*24*time.Hour || p.cfg.MaxDeliveries != 8 || p.cfg.Order != Park ||
		p.cfg.Backoff != (Backoff{time.Second, time.Minute}) || p.cfg.Breaker != (Breaker{20, 5, time.Second, time.Minute, false}) {
		t.Errorf("%+v", p.cfg)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Initial: time.Second, Max: 10 * time.Second}
	for range 100 {
		for n, most := range map[int]time.Duration{0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 1 << 40: 10} {
			most *= time.Second
			if got := b.after(n); got > most || got < most/2 {
				t.Fatalf("a pause of %v after %d failures", got, n)
			}
		}
		for away, most := range map[time.Duration]time.Duration{0: 1, 3 * time.Second: 3, time.Hour: 10} {
			most *= time.Second
			if got := b.while(away); got > most || got < most/2 {
				t.Fatalf("a pause of %v when away for %v", got, away)
			}
		}
	}
}

func TestLane(t *testing.T) {
	of := func(topic string, key []byte) string { return string((&Message{Topic: topic, Key: key}).lane()) }
	if of("a", nil) != "" || of("a", []byte{}) == "" {
		t.Error("no key is no lane, and an empty key is one")
	}
	if of("a", []byte("b")) == of("ab", nil) || of("a", []byte("k")) == of("b", []byte("k")) {
		t.Error("a lane is one key of one topic")
	}
}
