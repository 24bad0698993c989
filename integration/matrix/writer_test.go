package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A transaction whose COMMIT fails has published nothing and holds nothing back.
func commitFails(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	p.Exec(`CREATE TABLE public.parent (id int PRIMARY KEY);
		CREATE TABLE public.child (parent int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED)`)
	r := p.start(testenv.RelayOptions{})
	conn := p.Conn()
	tx, within := p.open(conn, "never")
	if _, err := tx.Exec(t.Context(), `INSERT INTO public.child VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	var refused *pgconn.PgError
	if err := tx.Commit(t.Context()); !errors.As(err, &refused) || refused.Code != "23503" {
		t.Fatalf("COMMIT = %v, want a violated foreign key", err)
	}
	p.nothingLeft(r, within)

	// What happens next: the writer tries again without the mistake.
	p.Settled(p.insert("again"))
	p.published("again")
	p.Stop(r)
}

// A writer that dies before its COMMIT has published nothing and holds nothing back, and others are not held meanwhile.
func writerKilled(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	r := p.start(testenv.RelayOptions{})
	writer, err := pgx.Connect(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, within := p.open(writer, "never")
	pid := writer.PgConn().PID()
	p.Settled(p.Insert("order", "other", "meanwhile")) // its COMMIT writes the open transaction's rows to disk, too
	p.published("meanwhile")
	if err := writer.PgConn().Conn().Close(); err != nil { // as the kernel does for a process that was killed
		t.Fatal(err)
	}
	conn := p.Conn()
	testenv.Until(t, patience, func(ctx context.Context) error {
		var alive bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&alive)
		if alive {
			err = errors.New("the server has not noticed the end of the writer")
		}
		return err
	})
	p.nothingLeft(r, within)
	p.published("meanwhile")

	// What happens next: the writer is started again and does its work.
	p.Settled(p.insert("again"))
	p.published("meanwhile", "again")
	p.Stop(r)
}

// open begins a transaction with one row of the outbox and returns a position within it.
func (p *play) open(conn *pgx.Conn, value string) (tx pgx.Tx, within string) {
	p.t.Helper()
	tx, err := conn.Begin(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := tx.Exec(p.t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload) VALUES ('order', 'key', $1)`,
		value); err != nil {
		p.t.Fatal(err)
	}
	if err := tx.QueryRow(p.t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&within); err != nil {
		p.t.Fatal(err)
	}
	return tx, within
}

// nothingLeft checks that a transaction that did not commit has left no trace.
func (p *play) nothingLeft(r *testenv.Relay, within string) {
	p.t.Helper()
	p.Settled(within) // so the relay has seen whatever there was to see
	var rows int
	if err := p.Conn().QueryRow(p.t.Context(), `SELECT count(*) FROM public.outbox WHERE payload = 'never'`).Scan(&rows); err != nil || rows > 0 {
		p.t.Errorf("%d rows are left in the outbox (%v)", rows, err)
	}
	for _, record := range p.Consume(p.topic, p.Count(p.topic), patience) {
		if string(record.Value) == "never" {
			p.t.Error("a row was published that was never committed")
		}
	}
	if n := scene.Metric(p.t, r, "cdc_relay_in_flight_messages"); n != 0 {
		p.t.Error(fmt.Sprint(n, " rows are in flight"))
	}
}
