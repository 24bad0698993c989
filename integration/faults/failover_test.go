package faults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// standbySlot is the physical slot of the standby, and its name.
const standbySlot = "standby"

// followed are settings of a server whose standby has every commit before the writer knows of it, and before the relay
// does: a failover then loses nothing, and nothing is on the topics that the new primary does not have.
func followed() map[string]string {
	return map[string]string{"synchronous_standby_names": standbySlot, "synchronized_standby_slots": standbySlot}
}

// follow starts a standby of the present primary.
func (l *lab) follow() {
	l.t.Helper()
	standby, err := l.server.StartStandby(l.t.Context(), localstack.StandbyConfig{Slot: standbySlot})
	if err != nil {
		l.t.Fatal(err)
	}
	l.closeLater(standby.Close)
	l.standby = standby
}

// failOver ends the primary, has the standby take its place, and starts a new standby.
func (p *pair) failOver(end func(context.Context, *localstack.Postgres) error) string {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	p.waitSynced()
	began, former := time.Now(), p.server
	if err := end(ctx, former); err != nil {
		p.t.Fatal(err)
	}
	if err := p.standby.Promote(ctx); err != nil {
		p.t.Fatal(err)
	}
	p.lead(p.standby)
	took := time.Since(began)
	if err := former.Close(); err != nil {
		p.t.Error(err)
	}
	p.follow()
	return fmt.Sprintf("promoted after %d ms, a new standby after %d ms", took.Milliseconds(), time.Since(began).Milliseconds())
}

// waitSynced waits until the standby could go on for the slot. A new one has to hear of running transactions first.
func (p *pair) waitSynced() {
	p.t.Helper()
	if conn, err := p.connect(p.t.Context()); err == nil {
		_, _ = conn.Exec(p.t.Context(), `SELECT pg_log_standby_snapshot()`) // It would come by itself, later.
		conn.Close(p.t.Context())
	}
	testenv.Until(p.t, patience, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.standby.URL("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		var ready bool
		err = conn.QueryRow(ctx, `SELECT coalesce(bool_or(synced AND NOT temporary AND invalidation_reason IS NULL), false)
			FROM pg_replication_slots WHERE slot_name = $1`, p.env.Slot).Scan(&ready)
		if err == nil && !ready {
			err = errors.New("the slot is not on the standby yet")
		}
		return err
	})
}
