package commandtest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// runConsumer runs the runner of a consumer until the test ends.
func runConsumer(t *testing.T, url, name string, handle func(*inbox.Message) error) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	p, err := inbox.New(inbox.Config{
		Consumer: name, Pool: pool, Logger: slog.New(slog.DiscardHandler), PollInterval: 50 * time.Millisecond,
		Handler: func(_ context.Context, _ pgx.Tx, m *inbox.Message) error { return handle(m) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the runner ends with %v", err)
		}
		pool.Close()
	})
}

// list tells behind what a key waits; retry and release open its way and no other's.
func TestParkedKeys(t *testing.T) {
	t.Parallel()
	d := newConsumerDB(t)
	d.prints(0, []string{"nothing is parked\n"}, "parked", "list")
	dead := d.bury("billing", "dead-k", "k")
	d.park("billing", "wait-k", "k", 0)
	d.bury("billing", "dead-l", "l")
	d.park("billing", "wait-l", "l", 0)
	d.Exec(`INSERT INTO public.cdc_relay_inbox_sequence (consumer, lane, version) VALUES ('billing', public.cdc_inbox_lane('orders', 'gap'), 3)`)
	d.park("billing", "wait-7", "gap", 7)
	d.park("billing", "wait-6", "gap", 6)
	d.park("shipping", "wait-k", "k", 2)

	d.prints(0, []string{"BEHIND", "dead letter " + dead + " (dead)", "missing version 4; the next is 6", "missing version 1; the next is 2"}, "parked", "list")
	type lane struct {
		Key     string
		Parked  int
		Letter  *int
		Missing *int `json:"missing_version"`
	}
	got := jsonOf[[]lane](t, d.run(0, "parked", "list", "--consumer", "billing", "--topic", "orders", "--key", "gap", "-o", "json"))
	if len(got) != 1 || got[0].Parked != 2 || got[0].Letter != nil || got[0].Missing == nil || *got[0].Missing != 4 {
		t.Errorf("list -o json: %+v", got)
	}
	d.prints(0, []string{"the first 2; --max 0 shows all"}, "parked", "list", "--max", "2")

	d.prints(0, []string{"left alone: key gap of topic orders waits behind missing version 4", "replayed 0 keys"}, "parked", "retry", "--consumer", "billing", "--key", "gap")
	d.prints(0, []string{"nothing is parked that matches"}, "parked", "retry", "--consumer", "billing", "--key", "k", "--topic", "other")
	d.prints(0, []string{"replayed 1 key"}, "parked", "retry", "--consumer", "billing", "--key", "k")
	d.prints(0, []string{"left alone", "(due)"}, "parked", "release", "--consumer", "billing", "--key", "k")
	d.prints(0, []string{"released 1 key"}, "parked", "release", "--consumer", "billing", "--key", "l")
	d.prints(0, []string{`"released": 1`}, "parked", "release", "--consumer", "billing", "--key", "gap", "-o", "json")
	if got := d.state("dead-k") + " " + d.state("dead-l") + " " + d.Text(`SELECT version FROM public.cdc_relay_inbox_sequence`); got != "due discarded 5" {
		t.Errorf("the letters and the sequence are %q", got)
	}
	d.prints(0, []string{"nothing; the runner handles it"}, "parked", "list", "--key", "gap")
}

// show, forget and prune go by message and consumer, and leave alone what waits.
func TestInboxMessages(t *testing.T) {
	t.Parallel()
	d := newConsumerDB(t)
	d.prints(0, []string{"no consumer has settled anything here"}, "inbox", "stats")
	d.Exec(`SELECT public.cdc_inbox_claim('billing', 'm'), public.cdc_inbox_claim('shipping', 'm'), public.cdc_inbox_failed('audit', 'm', 'no such table')`)
	dead := d.bury("billing", "dead", "k")

	d.prints(0, []string{"billing", "processed", "shipping", "not settled", "no such table"}, "inbox", "show", "m")
	d.prints(0, []string{dead + " dead"}, "inbox", "show", "dead")
	shown := jsonOf[[]struct {
		Outcome *string
		Letter  *int
	}](t, d.run(0, "inbox", "show", "m", "--consumer", "audit", "-o", "json"))
	if len(shown) != 1 || shown[0].Outcome != nil || shown[0].Letter != nil {
		t.Errorf("show -o json: %+v", shown)
	}
	refused(t, d.Run(d.with("inbox", "show", "x")...), 3, "no consumer knows message x", "inbox stats")

	d.prints(0, []string{"consumer billing handles message m again"}, "inbox", "forget", "m", "--consumer", "billing")
	refused(t, d.Run(d.with("inbox", "forget", "m", "--consumer", "billing")...), 3, "has not settled message m", "inbox show m")
	refused(t, d.Run(d.with("inbox", "forget", "dead", "--consumer", "billing")...), 3, "is a dead letter of consumer billing", "dlq --source inbox")
	if got := d.Text(`SELECT string_agg(consumer || ' ' || message_id, ', ' ORDER BY consumer, message_id) FROM public.cdc_relay_inbox`); got != "billing dead, shipping m" {
		t.Errorf("settled are %s", got)
	}

	d.Exec(`INSERT INTO public.cdc_relay_inbox (message_id, consumer, settled_at) SELECT n::text, 'billing', now() - interval '40 days' FROM generate_series(1, 2500) n`)
	d.Exec(`UPDATE public.cdc_relay_inbox SET settled_at = now() - interval '40 days' WHERE message_id = 'dead'`)
	prune := d.with("inbox", "prune", "--consumer", "billing", "--until", "30d")
	d.Exec(`INSERT INTO public.cdc_relay_inbox_consumer (consumer, retention) VALUES ('billing', '31 days')`)
	refused(t, d.Run(prune...), 2, "consumer billing remembers for 744h0m0s", "--until 744h or more, or --force")
	pruner := d.Conn()
	if _, err := pruner.Exec(t.Context(), `BEGIN; SELECT public.cdc_inbox_prune('billing', '-infinity')`); err != nil {
		t.Fatal(err)
	}
	refused(t, d.Run(append(prune, "--force")...), 3, "another pruner of consumer billing is at work", "again later")
	if _, err := pruner.Exec(t.Context(), `ROLLBACK; UPDATE public.cdc_relay_inbox_consumer SET retention = '30 days'`); err != nil {
		t.Fatal(err)
	}
	d.prints(0, []string{"forgot 2500 messages"}, "inbox", "prune", "--consumer", "billing", "--until", "30d")
	d.prints(0, []string{"forgot 0 messages"}, "inbox", "prune", "--consumer", "shipping", "--until", "30d")
	if got := d.Text(`SELECT count(*) FROM public.cdc_relay_inbox`); got != "2" {
		t.Errorf("%s messages are left, want 2", got)
	}
}
