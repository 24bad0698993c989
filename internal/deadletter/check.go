package deadletter

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// checkSQL says what the role lacks. It reads the catalog only: a name that is resolved
// in a schema which the role may not use is an error.
const checkSQL = `
SELECT c.oid IS NOT NULL,
       (SELECT count(DISTINCT p.proname) FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proname = ANY ($1)),
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       ARRAY(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) r WHERE NOT has_table_privilege(c.oid, r)),
       ARRAY(SELECT p.proname::text FROM pg_catalog.pg_proc p
              WHERE p.pronamespace = n.oid AND p.proname = ANY ($1) AND NOT has_function_privilege(p.oid, 'EXECUTE') ORDER BY 1),
       ARRAY(SELECT p.oid::regprocedure::text FROM pg_catalog.pg_proc p
              WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'pg_logical_emit_message'
                AND p.proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE'))
  FROM (SELECT 1) one
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'public'
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'cdc_relay_dead_letter'`

// functions are those that the relay calls.
var functions = []string{"cdc_relay_dead_letter_put", "cdc_relay_dead_letter_put_back"}

type rights struct {
	Table     bool
	Functions int
	Usage     bool
	Lacks     []string // on the table
	Forbidden []string // functions
	Message   []string // functions that write a logical message, likewise
}

// Check checks that the relay can keep dead letters: that table and functions are there
// and that the role has the rights to them. It changes nothing. The error is a
// *[catalog.CheckError] whose Next holds the SQL, or the context's own.
func Check(ctx context.Context, db *catalog.DB) error {
	got, err := query(ctx, db, 0, "read the rights to dead letters", pgx.RowToStructByPos[rights], checkSQL, functions)
	if err != nil {
		return err
	}
	r := got[0]
	switch {
	case !r.Table:
		return fault(catalog.Configuration, "table public.cdc_relay_dead_letter does not exist, so no dead letter can be kept",
			migrate+", or set on_poison: halt")
	case r.Functions < len(functions):
		return fault(catalog.Configuration, "the functions of public.cdc_relay_dead_letter are missing, so no dead letter can be kept",
			"drop the table, if it is not cdc-relay's own, and "+migrate+", or set on_poison: halt")
	}
	var lacks []string
	if !r.Usage {
		lacks = append(lacks, "USAGE on schema public")
	}
	if len(r.Lacks) > 0 {
		lacks = append(lacks, strings.Join(r.Lacks, ", ")+" on public.cdc_relay_dead_letter")
	}
	for _, f := range r.Forbidden {
		lacks = append(lacks, "EXECUTE on function public."+f)
	}
	steps := []string{grant(db)}
	for _, f := range r.Message {
		lacks = append(lacks, "EXECUTE on function "+f)
		steps = append(steps, "as a superuser: GRANT EXECUTE ON FUNCTION "+f+" TO "+ident(db.Role()))
	}
	if len(lacks) > 0 {
		return fault(catalog.Privilege, "the role may not keep dead letters: it lacks "+strings.Join(lacks, "; "),
			strings.Join(append(steps, "or set on_poison: halt"), "; "))
	}
	// A table of that name that somebody else has made lacks a column.
	_, err = query(ctx, db, 0, "read public.cdc_relay_dead_letter", pgx.RowTo[int64], "SELECT id FROM (SELECT "+columns+
		", value, changed_lsn FROM public.cdc_relay_dead_letter LIMIT 0) none")
	return err
}

// CheckPurge checks that the role may delete dead letters; see [Check].
func CheckPurge(ctx context.Context, db *catalog.DB) error {
	_, err := db.Exec(ctx, "purge dead letters", "DELETE FROM public.cdc_relay_dead_letter WHERE false")
	return explainPurge(db, err)
}

func explainPurge(db *catalog.DB, err error) error {
	var e *catalog.CheckError
	if errors.As(err, &e) && e.Class == catalog.Privilege {
		e.Next = "as the owner of the schema: GRANT DELETE ON public.cdc_relay_dead_letter TO " + ident(db.Role())
		return err
	}
	return explain(db, err)
}

func fault(class catalog.Class, problem, next string) error {
	return &catalog.CheckError{Check: "dead letters", Problem: problem, Next: next, Class: class}
}
