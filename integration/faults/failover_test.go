package faults_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
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

// failOver ends the primary, has the standby, which is synced, take its place, and starts a new one.
func (p *pair) failOver(end func(context.Context, *localstack.Postgres) error) string {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
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

// synced says whether the standby could go on for the slot. Where it could not, a new standby has yet to hear of the
// transactions that run, which takes a while by itself.
func (p *pair) synced() bool {
	ctx := p.t.Context()
	var ready bool
	err := query(ctx, p.standby.URL("postgres"), `SELECT coalesce(bool_or(synced AND NOT temporary AND invalidation_reason IS NULL), false)
		FROM pg_replication_slots WHERE slot_name = $1`, &ready, p.env.Slot)
	if err == nil && !ready {
		var lsn string
		err = query(ctx, p.server.URL("postgres"), `SELECT pg_log_standby_snapshot()::text`, &lsn)
	}
	return err == nil && ready
}

// query reads one value from a server, which may be gone.
func query(ctx context.Context, url, sql string, value any, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, sql, args...).Scan(value)
}
