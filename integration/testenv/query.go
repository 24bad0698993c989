package testenv

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Value returns the one value of a query, which must be text and not NULL. It uses a connection of its own, as the
// server may have ended any other.
func (e *Env) Value(sql string, args ...any) string {
	e.t.Helper()
	value, err := query(e.t.Context(), e.URL, sql, args...)
	if err == nil && value == nil {
		err = errors.New("the value is NULL")
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return *value
}

// Text returns the one value of a query as text, "" for NULL and for no row. It uses a connection of its own.
func (e *Env) Text(sql string, args ...any) string {
	e.t.Helper()
	value, err := TextAt(e.t.Context(), e.URL, sql, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return value
}

// TextAt is [Env.Text] on any server.
func TextAt(ctx context.Context, url, sql string, args ...any) (string, error) {
	value, err := query(ctx, url, `SELECT (`+sql+`)::text`, args...)
	if err != nil || value == nil {
		return "", err
	}
	return *value, nil
}

// OfSlot reads a column of the test's slot as text, "" for NULL. There must be the slot.
func (e *Env) OfSlot(column string) string {
	e.t.Helper()
	return e.Value(`SELECT coalesce(`+column+`::text, '') FROM pg_replication_slots WHERE slot_name = $1`, e.Slot)
}

func query(ctx context.Context, url, sql string, args ...any) (value *string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}
