package record

import (
	"errors"
	"fmt"
)

// ErrIgnored is what Map returns for a row of a table that is to be passed over:
// there is no record, and nothing to settle.
var ErrIgnored = errors.New("row belongs to an ignored table")

// TableError is a row of a published table that is not configured. Passing over it
// would lose the rows of an outbox table that was renamed, so it halts.
type TableError struct {
	Table Table
}

// Error names the table and the next step.
func (e *TableError) Error() string {
	return fmt.Sprintf("table %s is published but is not an outbox table; add it to outbox.table or outbox.ignored_tables", e.Table)
}

// ColumnError is a needed column that a table does not have, or has no more. It
// halts: without the column no row of the table can be published.
type ColumnError struct {
	Table  Table
	Field  string // What the column is needed for.
	Column string // Its exact name.
}

// Error names the table, the column, and the next step.
func (e *ColumnError) Error() string {
	return fmt.Sprintf("table %s has no column %q, which is needed for field %s; "+
		"name the column that holds the field under outbox.columns and start again "+
		"(rows in the log keep the columns that they were written with)",
		e.Table, e.Column, e.Field)
}

// RowError is one row that cannot become a record, now or later. It quotes nothing
// of the row.
type RowError struct {
	Table   Table
	Column  string // Exact name of the column at fault.
	Problem string
	Next    string
	Unread  bool // There is a payload, and it could not be read.
}

// Error names the table, the column, the problem and the next step.
func (e *RowError) Error() string {
	return fmt.Sprintf("row of table %s cannot be published: column %q %s; %s", e.Table, e.Column, e.Problem, e.Next)
}
