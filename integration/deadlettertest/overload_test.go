package deadlettertest

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Whoever may create functions in public, which on 14 is everybody, cannot have the relay
// run one of theirs in place of its own, with its rights.
func TestOverloadsAreNotRun(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.Exec("CREATE TABLE public.ran (name text)")
	for _, name := range []string{"put", "put_back", "replay"} {
		s.Exec(`DO $do$
DECLARE
    f record;
BEGIN
    SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result INTO STRICT f
      FROM pg_proc p WHERE p.oid = 'public.cdc_relay_dead_letter_` + name + `'::regproc;
    -- text is what the server takes a parameter for whose type nobody has said.
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE sql AS $f$ INSERT INTO public.ran VALUES (%L); SELECT NULL%s $f$',
        f.proname, regexp_replace(regexp_replace(f.arguments, '(pg_lsn|bytea(\[\])?|bigint(\[\])?|boolean)', 'text', 'g'), ' DEFAULT [^,]*', '', 'g'),
        regexp_replace(f.result, 'TABLE.*', 'text'), f.proname, '::text');
END
$do$`)
	}
	l := s.letter(0)
	id := s.put(l)
	s.replay(id)
	back := *l
	back.ID, back.Replays = id, 1
	if marker, err := deadletter.PutBack(t.Context(), s.db, s.walsender, &back); err != nil || marker != back.Marker {
		t.Errorf("PutBack = %q, %v", marker, err)
	}
	if ran := s.Text("SELECT coalesce(string_agg(name, ' '), '') FROM public.ran"); ran != "" {
		t.Errorf("ran %s of somebody else", ran)
	}
	if got := s.get(id); got.State != deadletter.Dead || got.Replays != 1 {
		t.Errorf("the letter is %s after %d replays, want dead after 1", got.State, got.Replays)
	}
}
