package cluster_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Batches are appended and their answers are lost, or come when nobody waits for them any more.
func TestAnswersLostOrLate(t *testing.T) {
	brokers(t)
	defer shared.Heal()
	l := newLoad(t, testenv.Settings{"kafka.brokers": shared.proxied()}, checker.Config{Seed: 14}, one)
	for _, p := range shared.Proxies {
		p.Stall(proxy.ToClient)
	}
	l.stands(time.Second)
	for _, p := range shared.Proxies {
		p.Reset()
	}
	shared.Heal()
	l.flows("lost answers", soon)
	for _, p := range shared.Proxies {
		p.Delay(proxy.ToClient, 11*time.Second) // The relay waits for ten.
	}
	l.stands(12 * time.Second)
	shared.Heal()
	l.flows("answers after their time-out", soon)
	if n := scene.Metric(t, l.relay, "cdc_relay_publish_failures_total"); n < 2 {
		t.Errorf("%v attempts without an answer, want more", n)
	}
	l.judge()
}

// A producer quota slows the relay down, and costs nothing else.
func TestThrottled(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Seed: 15}, one)
	a := admin(t)
	a.ProducerQuota(4096)
	defer a.ProducerQuota(0)
	testenv.Pass(t, 5*time.Second)
	var rows float64
	if err := l.conn.QueryRow(t.Context(), `SELECT count(*) FROM public.outbox`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	behind := rows - scene.Metric(t, l.relay, "cdc_relay_messages_published_total")
	t.Logf("%v of %v rows behind", behind, rows)
	if behind < rows/10 {
		t.Error("the quota does not show")
	}
	a.ProducerQuota(0)
	l.flows("the end of the quota", 2*soon)
	l.judge()
}
