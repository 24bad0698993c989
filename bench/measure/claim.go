package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// claimWorkers is how many messages are handled at a time.
const claimWorkers = 16

// Claim is what it costs a consumer to claim its messages: the same handler, one insert in one transaction, with and
// without.
type Claim struct {
	Messages    int          `json:"messages"`
	Concurrency int          `json:"concurrency"`
	Rounds      []ClaimRound `json:"rounds"`
	With        float64      `json:"with_claim_messages_per_second"` // medians
	Without     float64      `json:"without_claim_messages_per_second"`
	Ratio       float64      `json:"ratio"` // median of the rounds' own ratios
	RatioRange  [2]float64   `json:"ratio_range"`
}

// ClaimRound is a run of each, one right after the other, in messages a second.
type ClaimRound struct {
	With    float64 `json:"with_claim_messages_per_second"`
	Without float64 `json:"without_claim_messages_per_second"`
}

// Claim handles as many messages with the inbox's Processor as in plain transactions, in turn.
func (l *Lab) Claim(ctx context.Context) (Claim, error) {
	c := Claim{Messages: l.opts.ClaimMessages, Concurrency: claimWorkers}
	if err := l.prepareClaim(ctx); err != nil {
		return c, err
	}
	config, err := pgxpool.ParseConfig(l.pg.URL(database))
	if err != nil {
		return c, err
	}
	config.MaxConns = claimWorkers
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return c, err
	}
	defer pool.Close()
	p, err := inbox.New(inbox.Config{Consumer: "bench", Pool: pool, Handler: insertEffect, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return c, err
	}
	with := func(ctx context.Context, m *inbox.Message) error {
		if r := p.Process(ctx, m); r.Outcome != inbox.Processed {
			return fmt.Errorf("a message is %v: %w", r.Outcome, r.Err)
		}
		return nil
	}
	without := func(ctx context.Context, m *inbox.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return insertEffect(ctx, tx, m) })
	}
	for i := range l.opts.Rounds + 1 {
		var round ClaimRound
		if round.With, err = l.handleAll(ctx, with); err != nil {
			return c, fmt.Errorf("handle with the claim: %w", err)
		}
		if round.Without, err = l.handleAll(ctx, without); err != nil {
			return c, fmt.Errorf("handle without the claim: %w", err)
		}
		if i == 0 {
			continue // It warms up what is new to the server and the pool.
		}
		l.say("claim, round %d of %d: %.0f messages/s with, %.0f without; ratio %.2f", i, l.opts.Rounds, round.With, round.Without, round.ratio())
		c.Rounds = append(c.Rounds, round)
	}
	c.summarise()
	return c, nil
}

// prepareClaim makes the tables of the consumer.
func (l *Lab) prepareClaim(ctx context.Context) error {
	if _, err := migrations.Up(ctx, l.db, migrations.Options{Only: []string{"cdc_relay_inbox"}}); err != nil {
		return err
	}
	_, err := l.db.Exec(ctx, `CREATE TABLE IF NOT EXISTS public.bench_effect (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL, shipment jsonb NOT NULL)`)
	return err
}

// insertEffect is the handler.
func insertEffect(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO public.bench_effect (order_id, shipment) VALUES ($1, $2)`, string(m.Key), m.Value)
	return err
}

// handleAll handles new messages of 1,000 keys, and returns how many a second. Each must have had its effect.
func (l *Lab) handleAll(ctx context.Context, handle func(context.Context, *inbox.Message) error) (float64, error) {
	if _, err := l.db.Exec(ctx, `TRUNCATE public.bench_effect, public.cdc_relay_inbox`); err != nil {
		return 0, err
	}
	payload := []byte(`{"order": "order-17", "customer": "c1a5298f939e87e8f962a5edfc206918", "lines": [{"sku": "SKU-17", "quantity": 2}]}`)
	l.claimed++
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, claimWorkers)
	began := time.Now()
	for i := range claimWorkers {
		all.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1))
				if n > l.opts.ClaimMessages {
					return
				}
				errs[i] = handle(ctx, &inbox.Message{
					ID: fmt.Sprintf("%d-%032x", l.claimed, n), Topic: "order", Offset: int64(n), Value: payload,
					Key: []byte("order-" + strconv.Itoa(n%1000)),
				})
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	var effects int
	if err := l.db.QueryRow(ctx, `SELECT count(*) FROM public.bench_effect`).Scan(&effects); err != nil {
		return 0, err
	}
	if effects != l.opts.ClaimMessages {
		return 0, fmt.Errorf("%d effects of %d messages", effects, l.opts.ClaimMessages)
	}
	return float64(effects) / took.Seconds(), nil
}

func (r ClaimRound) ratio() float64 { return r.With / r.Without }

// summarise takes the medians of the rounds.
func (c *Claim) summarise() {
	var with, without, ratios []float64
	for _, r := range c.Rounds {
		with, without, ratios = append(with, r.With), append(without, r.Without), append(ratios, r.ratio())
	}
	c.With, c.Without, c.Ratio = median(with), median(without), median(ratios)
	c.RatioRange = [2]float64{slices.Min(ratios), slices.Max(ratios)}
}
