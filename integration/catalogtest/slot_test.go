package catalogtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

func TestSlotFaults(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	schema(t, env)
	env.Exec("CREATE PUBLICATION " + env.Publication + " FOR TABLE public.outbox WITH (publish = 'insert')")
	db := open(t, env.URL)
	other := testenv.New(t, testenv.NoKafka())
	for _, c := range []struct {
		name, make, want string
	}{
		{"none", "SELECT 1", "does not exist; next: run `cdc-relay init`"},
		{"plugin", "SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'test_decoding')", "output plugin test_decoding"},
		{"physical", "SELECT pg_create_physical_replication_slot('" + env.Slot + "')", "physical slot"},
		{"two phase", "SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'pgoutput', false, true)", "two_phase"},
		{"unrecorded", "SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'pgoutput')", "has no row for it"},
	} {
		env.Exec(c.make)
		_, err := db.Check(t.Context(), spec(env))
		wantFault(t, err, catalog.Configuration, c.want)
		env.Exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '" + env.Slot + "'")
	}

	other.Exec("SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'pgoutput')")
	_, err := db.Check(t.Context(), spec(env))
	wantFault(t, err, catalog.Configuration, "belongs to database "+other.Slot)
	_, err = db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Configuration, "belongs to database "+other.Slot)
	other.Exec("SELECT pg_drop_replication_slot('" + env.Slot + "')")

	conn := env.Conn() // a temporary slot lives as long as its session
	if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('"+env.Slot+"', 'pgoutput', true)"); err != nil {
		t.Fatal(err)
	}
	_, err = db.Check(t.Context(), spec(env))
	wantFault(t, err, catalog.Configuration, "temporary")
}

// A slot that a DBA has made, with nothing recorded yet, is taken over.
func TestInitAdoptsASlot(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	schema(t, env)
	db := open(t, env.URL)
	env.Exec("SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'pgoutput')")
	_, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Configuration, "a slot cannot decode through a younger publication")
	env.Exec("SELECT pg_drop_replication_slot('" + env.Slot + "')")
	env.Exec("CREATE PUBLICATION " + env.Publication + " FOR TABLE public.outbox WITH (publish = 'insert')")
	env.Exec("SELECT pg_create_logical_replication_slot('" + env.Slot + "', 'pgoutput')")
	if got, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {}); err != nil || len(got) != 1 {
		t.Fatalf("Init ran %v, %v, want one statement", got, err)
	}
	r, err := db.Check(t.Context(), spec(env))
	if err != nil || r.Row.Consistent != r.Slot.Confirmed {
		t.Errorf("row %+v, %v, want the slot's position %s", r.Row, err, r.Slot.Confirmed)
	}
}

// A slot that is recorded and gone is never made anew.
func TestSlotKnownButGone(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := ready(t, env)
	env.Exec("UPDATE public.cdc_relay_slots SET confirmed = '0/1234'")
	env.Exec("SELECT pg_drop_replication_slot('" + env.Slot + "')")
	_, err := db.Check(t.Context(), spec(env))
	const want = "knows it"
	wantFault(t, err, catalog.Configuration, want)
	_, err = db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Configuration, want)
	_, err = db.Plan(t.Context(), setup(env))
	wantFault(t, err, catalog.Configuration, want)

	// The way on that the error names.
	env.Exec("DELETE FROM public.cdc_relay_slots WHERE slot = '" + env.Slot + "'")
	if _, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Check(t.Context(), spec(env)); err != nil {
		t.Error(err)
	}
}

func TestSlotRow(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	db := ready(t, env)
	first, known, err := db.SlotRow(ctx, env.Slot)
	if err != nil || !known {
		t.Fatal(known, err)
	}
	holder := hold(t, env, first.Consistent)
	recorded, err := db.UpdateConfirmed(ctx, env.Slot, holder, 0xA_0000_0001, 3, true)
	if err != nil {
		t.Fatal(err)
	}
	row, _, err := db.SlotRow(ctx, env.Slot)
	if err != nil || row.Confirmed != 0xA_0000_0001 || row.Timeline != 3 || !row.CleanStop ||
		!row.ConfirmedAt.Equal(recorded) || time.Since(recorded).Abs() > time.Minute {
		t.Errorf("row %+v, %v", row, err)
	}
	_, err = db.Check(ctx, spec(env))
	wantFault(t, err, catalog.Configuration, "older than what slot "+env.Slot+" was used on (timeline 1, not 3)")

	env.Exec("UPDATE public.cdc_relay_slots SET system_id = '1'")
	_, err = db.Check(ctx, spec(env))
	wantFault(t, err, catalog.Configuration, "this is another server")
	if err := db.AcceptServer(ctx, env.Slot); err != nil {
		t.Fatal(err)
	}
	r, err := db.Check(ctx, spec(env))
	if err != nil || r.Row.HistoryID == first.HistoryID || r.Row.SystemID != first.SystemID || r.Row.Timeline != 1 || r.Row.Confirmed != 0 || r.Row.CleanStop {
		t.Errorf("row after AcceptServer: %+v, %v", r.Row, err)
	}

	sp := spec(env)
	sp.Publication = env.Publication + "2"
	env.Exec("CREATE PUBLICATION " + sp.Publication + " FOR TABLE public.outbox WITH (publish = 'insert')")
	_, err = db.Check(ctx, sp)
	wantFault(t, err, catalog.Configuration, "was set up with publication")

	env.Exec("DELETE FROM public.cdc_relay_slots")
	_, err = db.UpdateConfirmed(ctx, env.Slot, holder, 1, 1, false)
	wantFault(t, err, catalog.Configuration, "no row")
	_, err = db.RenewHistory(ctx, env.Slot, holder, first.HistoryID)
	wantFault(t, err, catalog.Configuration, "no row")
	wantFault(t, db.AcceptServer(ctx, env.Slot), catalog.Configuration, "no row")
	if _, known, err := db.SlotRow(ctx, env.Slot); known || err != nil {
		t.Errorf("SlotRow = %v, %v, want none", known, err)
	}
}

// What a relay records of the slot counts only while it streams from it: one that has
// lost it without knowing must not write over what the next one has recorded.
func TestRecordOnlyWhileStreaming(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	db := ready(t, env)
	before, _, err := db.SlotRow(ctx, env.Slot)
	if err != nil {
		t.Fatal(err)
	}
	try := func(walsender uint32) {
		t.Helper()
		if _, err := db.UpdateConfirmed(ctx, env.Slot, walsender, before.Consistent, 1, true); !errors.Is(err, catalog.ErrNotHolder) {
			t.Errorf("UpdateConfirmed: %v, want that the slot is not held", err)
		}
		if _, err := db.RenewHistory(ctx, env.Slot, walsender, before.HistoryID); !errors.Is(err, catalog.ErrNotHolder) {
			t.Errorf("RenewHistory: %v, want that the slot is not held", err)
		}
		if row, _, err := db.SlotRow(ctx, env.Slot); err != nil || row.HistoryID != before.HistoryID || row.CleanStop {
			t.Errorf("row %+v, %v, want it unchanged", row, err)
		}
	}
	try(4711) // nobody streams
	holder := hold(t, env, before.Consistent)
	try(holder + 1)
	id, err := db.RenewHistory(ctx, env.Slot, holder, before.HistoryID)
	row, _, rowErr := db.SlotRow(ctx, env.Slot)
	if err != nil || rowErr != nil || id == before.HistoryID || row.HistoryID != id {
		t.Fatalf("RenewHistory = %q, %v; the row has %q", id, err, row.HistoryID)
	}
	if again, err := db.RenewHistory(ctx, env.Slot, holder, before.HistoryID); !errors.Is(err, catalog.ErrNotHolder) {
		t.Errorf("renewed a second time: %q, %v", again, err)
	}
}

func TestSlotMovedBySomebodyElse(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := ready(t, env)
	before, _, err := db.Slot(t.Context(), env.Slot)
	if err != nil {
		t.Fatal(err)
	}
	env.Exec("UPDATE public.cdc_relay_slots SET confirmed = '" + before.Confirmed.String() + "', confirmed_at = now(), clean_stop = true")
	env.Exec("INSERT INTO public.outbox (aggregatetype, type) VALUES ('a', 'b')")
	env.Exec("SELECT pg_replication_slot_advance('" + env.Slot + "', pg_current_wal_lsn())")
	r, err := db.Check(t.Context(), spec(env))
	if err != nil {
		t.Fatal(err)
	}
	move, moved := r.Slot.Moved(r.Server.Timeline, r.Row)
	if want := (catalog.Move{Slot: env.Slot, From: before.Confirmed, To: r.Slot.Confirmed, Exact: true, Recorded: r.Row.ConfirmedAt}); !moved || move != want {
		t.Errorf("Moved = %+v, %v, want %+v", move, moved, want)
	}
}

// Who holds a slot, how far it is behind, and how the server ends the connection.
func TestHolderAndLag(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	db := ready(t, env)
	free, _, err := db.Slot(ctx, env.Slot)
	if err != nil || free.Active || free.Holder != (catalog.Holder{}) {
		t.Fatalf("slot %+v, %v, want it free", free, err)
	}
	holder := hold(t, env, free.Confirmed)
	env.Exec("INSERT INTO public.outbox (aggregatetype, type) SELECT 'a', 'b' FROM generate_series(1, 1000)")
	slot, _, err := db.Slot(ctx, env.Slot)
	if err != nil {
		t.Fatal(err)
	}
	h := slot.Holder
	if !slot.Active || h.PID != holder || h.ApplicationName != catalog.ApplicationName || h.ClientAddr != "127.0.0.1" ||
		time.Since(h.Since).Abs() > time.Minute || h.SyncState != "async" {
		t.Errorf("holder %+v, want process %d", h, holder)
	}
	if !strings.Contains(h.String(), "("+catalog.ApplicationName+") from 127.0.0.1 since ") {
		t.Errorf("holder reads %q", h)
	}
	if slot.LagBytes() < 10_000 || slot.RetainedBytes() < slot.LagBytes() {
		t.Errorf("lag %d, retained %d", slot.LagBytes(), slot.RetainedBytes())
	}
}

// at is a slot that stands there.
func at(lsn pglogrepl.LSN) func(context.Context) (pglogrepl.LSN, error) {
	return func(context.Context) (pglogrepl.LSN, error) { return lsn, nil }
}

// hold streams from the slot without confirming anything, until the test ends, and
// returns the walsender's process id.
func hold(t *testing.T, env *testenv.Env, confirmed pglogrepl.LSN) uint32 {
	t.Helper()
	conn, err := wal.Connect(t.Context(), wal.Config{URL: env.URL, Slot: env.Slot, Publications: []string{env.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	pid := conn.PID()
	stream, err := conn.Start(t.Context(), wal.StartOptions{Confirmed: at(confirmed)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	return pid
}

func TestTerminatedConnection(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := open(t, env.URL)
	env.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '" + catalog.ApplicationName + "'")
	var got error
	testenv.Until(t, 10*time.Second, func(ctx context.Context) error {
		if _, got = db.Server(ctx); got == nil {
			return errors.New("still connected")
		}
		return nil
	})
	var e *catalog.CheckError
	if !catalog.Terminated(got) || !errors.As(got, &e) || !e.Transient() || !db.Closed() {
		t.Errorf("error %v (closed: %v), want a transient one that says terminated", got, db.Closed())
	}
}
