package inbox

import (
	"context"
	"fmt"
	"strings"
)

// What a consumer's role has to be allowed.
const lookAtTables = `SELECT t.name, c.oid IS NOT NULL,
		coalesce(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
		     AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'), false),
		quote_ident(current_user), current_database()
	FROM unnest(ARRAY['cdc_relay_inbox', 'cdc_relay_inbox_attempt', 'cdc_relay_inbox_letter',
	                  'cdc_relay_inbox_sequence', 'cdc_relay_inbox_consumer']) AS t (name)
	LEFT JOIN pg_catalog.pg_class c ON c.relname = t.name AND c.relnamespace = 'public'::regnamespace`

// Check looks whether the database has the tables of the inbox, and the processor's role
// the rights that it needs. The error names what is missing and the command that mends it.
// Call it once before the first message.
func (p *Processor) Check(ctx context.Context) error {
	rows, err := p.cfg.Pool.Query(ctx, lookAtTables)
	if err != nil {
		return fmt.Errorf("look at the tables of the inbox: %w", err)
	}
	defer rows.Close()
	var missing, closed []string
	var role, database string
	for rows.Next() {
		var name string
		var there, open bool
		if err := rows.Scan(&name, &there, &open, &role, &database); err != nil {
			return fmt.Errorf("look at the tables of the inbox: %w", err)
		}
		switch {
		case !there:
			missing = append(missing, "public."+name)
		case !open:
			closed = append(closed, "public."+name)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look at the tables of the inbox: %w", err)
	}
	switch {
	case len(missing) > 0:
		return fmt.Errorf("database %s has no table %s: run cdc-relay migrate up --only cdc_relay_inbox there", database, strings.Join(missing, ", "))
	case len(closed) > 0:
		return fmt.Errorf("role %s may not use %s: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s", role, strings.Join(closed, ", "), strings.Join(closed, ", "), role)
	}
	return nil
}
