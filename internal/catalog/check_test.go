package catalog

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

func goodSlot() Slot {
	return Slot{Name: "s", Plugin: "pgoutput", Database: "db", Restart: 0x80, Confirmed: 0x100, WALStatus: "reserved", SafeWALBytes: -1, WALEnd: 0x200}
}

func goodRow() SlotRow {
	return SlotRow{Slot: "s", Database: "db", SystemID: "7", Timeline: 2, Consistent: 0x80, Publications: []string{"p"}, HistoryID: "h", BackfillState: "none"}
}

func TestSlotCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Slot)
		want   string
	}{
		"good":            {func(*Slot) {}, ""},
		"active":          {func(s *Slot) { s.Active = true }, ""},
		"extended":        {func(s *Slot) { s.WALStatus = "extended" }, ""},
		"physical":        {func(s *Slot) { s.Physical, s.Plugin, s.Database = true, "", "" }, "physical"},
		"foreign plugin":  {func(s *Slot) { s.Plugin = "wal2json" }, "output plugin wal2json"},
		"other database":  {func(s *Slot) { s.Database = "x" }, "belongs to database x, not to db"},
		"temporary":       {func(s *Slot) { s.Temporary = true }, "temporary"},
		"two phase":       {func(s *Slot) { s.TwoPhase = true }, "two_phase"},
		"lost":            {func(s *Slot) { s.WALStatus, s.Restart = "lost", 0 }, "events committed after 0/100 may be missing"},
		"lost, no trace":  {func(s *Slot) { s.WALStatus, s.Restart, s.Confirmed = "lost", 0, 0 }, "events committed after 0/90 may be missing"},
		"invalidated":     {func(s *Slot) { s.WALStatus, s.Invalidation = "lost", "idle_timeout" }, "reason idle_timeout"},
		"conflict on 16":  {func(s *Slot) { s.Invalidation = "conflict" }, "reason conflict"},
		"copy on standby": {func(s *Slot) { s.Synced = true }, ""}, // the server check refuses a standby
	} {
		s, row := goodSlot(), goodRow()
		row.Confirmed = 0x90
		c.change(&s)
		t.Run(name, func(t *testing.T) { checkFault(t, s.check("db", row), c.want) })
	}
}

func TestSlotRowCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*SlotRow)
		want   string
	}{
		"good":              {func(*SlotRow) {}, ""},
		"other publication": {func(r *SlotRow) { r.Publications = []string{"Old"} }, `set up with publication "Old", not with p`},
		"backfill":          {func(r *SlotRow) { r.BackfillState = "running" }, "backfill"},
	} {
		r := goodRow()
		c.change(&r)
		t.Run(name, func(t *testing.T) { checkFault(t, r.check("p"), c.want) })
	}
	checkFault(t, goodRow().CheckSystem("7", 2), "")
	checkFault(t, goodRow().CheckSystem("7", 3), "") // after a failover
	checkFault(t, goodRow().CheckSystem("8", 2), "system identifier 8, not 7")
	checkFault(t, goodRow().CheckSystem("7", 1), "timeline 1, not 2")
}

func TestSlotMoved(t *testing.T) {
	t.Parallel()
	const exact, unsure = "moved by somebody else, from 0/F0, where cdc-relay had stopped, to 0/100", "0/100, and the position recorded last is 0/F0"
	for name, c := range map[string]struct {
		confirmed pglogrepl.LSN // of the row; the slot has 0x100
		clean     bool
		timeline  uint32
		want      string
	}{
		"where it was left":       {0x100, true, 2, ""},
		"further":                 {0xf0, true, 2, exact},
		"back after a crash":      {0x110, true, 2, ""},
		"further after no stop":   {0xf0, false, 2, unsure},
		"further, older timeline": {0xf0, true, 1, ""},
		"never confirmed":         {0, false, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := goodSlot(), goodRow()
			r.Confirmed, r.CleanStop, r.Timeline = c.confirmed, c.clean, c.timeline
			move, moved := s.Moved(2, r)
			if moved != (c.want != "") || moved && !strings.Contains(move.Warning().String(), c.want) {
				t.Errorf("got %v, %q, want %q", moved, move.Warning(), c.want)
			}
			if told := strings.Contains(move.Warning().Problem, "not exact"); moved && told == c.clean {
				t.Errorf("says that it is not exact: %v", told)
			}
		})
	}
}

func TestSlotWarnings(t *testing.T) {
	t.Parallel()
	s := goodSlot()
	s.WALStatus = "unreserved"
	checkWarnings(t, s.warnings(), "will be lost at the next checkpoint")
}

func TestSlotDistances(t *testing.T) {
	t.Parallel()
	s := goodSlot()
	if got := s.LagBytes(); got != 0x100 {
		t.Errorf("LagBytes() = %d", got)
	}
	if got := s.RetainedBytes(); got != 0x180 {
		t.Errorf("RetainedBytes() = %d", got)
	}
	s.Restart, s.Confirmed = 0, 0x300
	if s.LagBytes() != 0 || s.RetainedBytes() != 0 {
		t.Errorf("a lost slot or one ahead of the WAL end has lag %d and retains %d, want 0", s.LagBytes(), s.RetainedBytes())
	}
}

func TestPublicationCheck(t *testing.T) {
	t.Parallel()
	orders, audit := TableName{"public", "orders"}, TableName{"public", "audit"}
	for name, c := range map[string]struct {
		change         func(*Publication)
		ignored        []TableName
		fault, warning string
	}{
		"good":              {change: func(*Publication) {}},
		"no inserts":        {change: func(p *Publication) { p.Insert = false }, fault: "does not publish inserts"},
		"updates":           {change: func(p *Publication) { p.Update = true }, warning: "also publishes updates"},
		"row filter":        {change: func(p *Publication) { p.Tables[0].Filter = "(x > 1)" }, warning: "(x > 1)"},
		"column list":       {change: func(p *Publication) { p.Tables[0].Columns = []string{"payload"} }, fault: "leaves out column id"},
		"good column list":  {change: func(p *Publication) { p.Tables[0].Columns = []string{"payload", "id"} }},
		"stranger":          {change: func(p *Publication) { p.Tables = append(p.Tables, PublishedTable{Name: audit}) }, fault: "outbox.ignored_tables"},
		"ignored stranger":  {change: func(p *Publication) { p.Tables = append(p.Tables, PublishedTable{Name: audit}) }, ignored: []TableName{audit}},
		"all tables":        {change: func(p *Publication) { p.AllTables, p.Tables = true, append(p.Tables, PublishedTable{Name: audit}) }, fault: "names its tables"},
		"several strangers": {change: func(p *Publication) { p.Tables = append(p.Tables, many(7)...) }, fault: "and 2 more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Publication{Name: "p", Insert: true, ViaRoot: true, Tables: []PublishedTable{{Name: orders}}}
			c.change(&p)
			warnings, err := p.check([]TableSpec{{orders, []string{"id"}}}, c.ignored)
			checkFault(t, err, c.fault)
			checkWarnings(t, warnings, c.warning)
		})
	}
}

func many(n int) []PublishedTable {
	tables := make([]PublishedTable, n)
	for i := range tables {
		tables[i].Name = TableName{"x", string(rune('a' + i))}
	}
	return tables
}

func TestTableCheck(t *testing.T) {
	t.Parallel()
	good := func() Table {
		return Table{Name: TableName{"public", "outbox"}, Kind: "r", Persistence: "p", Columns: []Column{{Name: "id"}, {Name: "Type"}, {Name: "g", Generated: true}}}
	}
	for name, c := range map[string]struct {
		change   func(*Table)
		required []string
		want     string
	}{
		"good":           {func(*Table) {}, []string{"id", "Type"}, ""},
		"partitioned":    {func(t *Table) { t.Kind = "p" }, []string{"id"}, ""},
		"view":           {func(t *Table) { t.Kind = "v" }, nil, "public.outbox is a view"},
		"unlogged":       {func(t *Table) { t.Persistence = "u" }, nil, "unlogged"},
		"missing column": {func(*Table) {}, []string{"id", "payload"}, `has no column payload (it has id, "Type", g)`},
		"exact case":     {func(*Table) {}, []string{"type"}, "has no column type"},
		"generated":      {func(*Table) {}, []string{"g"}, "is generated"},
	} {
		table := good()
		c.change(&table)
		t.Run(name, func(t *testing.T) { checkFault(t, table.Check(c.required), c.want) })
	}
}
