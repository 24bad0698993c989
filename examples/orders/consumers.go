package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
)

// Consumer is one of the three. Each has a name of its own in the inbox, so each handles
// every message of its topic once.
type Consumer struct {
	Name     string
	Topic    string
	Handler  inbox.Handler
	Sequence inbox.Sequence
}

// Consumers returns all three.
func Consumers() []Consumer {
	return []Consumer{
		{Name: "shipping", Topic: OrderTopic, Handler: Ship},
		{Name: "billing", Topic: OrderTopic, Handler: Bill},
		{Name: "audit", Topic: StockTopic, Handler: Audit, Sequence: inbox.Sequence{Mode: inbox.ByVersion}},
	}
}

// Settings are where a consumer works.
type Settings struct {
	Database       string // URL of the database of the effects, which holds the inbox as well
	Brokers        []string
	SessionTimeout time.Duration // how long a dead instance keeps its partitions; 0: the default
	Logger         *slog.Logger
}

// Run runs the consumer until ctx ends; then it finishes what it has begun. Any number of
// processes may run the same consumer: they share the partitions.
func (c Consumer) Run(ctx context.Context, s Settings) error {
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer pool.Close()
	p, err := inbox.New(inbox.Config{
		Consumer: c.Name, Pool: pool, Handler: c.Handler, Sequence: c.Sequence, Logger: s.Logger,
	})
	if err != nil {
		return err
	}
	if err := p.Check(ctx); err != nil { // The tables of the inbox are missing: said now rather than at each message.
		return err
	}
	return inboxkafka.Run(ctx, inboxkafka.Config{
		Brokers: s.Brokers, Group: c.Name, Topics: []string{c.Topic},
		SessionTimeout: s.SessionTimeout, Logger: s.Logger,
	}, p)
}

// decode reads the payload. A second try would read the same, so a failure is permanent. The
// cause is left out: it quotes the payload, which is no business of a log.
func decode[Event any](m *inbox.Message) (Event, error) {
	var e Event
	if json.Unmarshal(m.Value, &e) != nil {
		return e, inbox.Permanent(errors.New("the value is not the JSON that this type of event has"))
	}
	return e, nil
}

// encode cannot fail: the events are structs of text and numbers.
func encode(event any) []byte {
	payload, _ := json.Marshal(event)
	return payload
}
