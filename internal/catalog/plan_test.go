package catalog

import (
	"bytes"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/golden"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	orders, tenders := TableName{"public", "outbox"}, TableName{"Sales", "outbox"}
	setup := Setup{Slot: "cdc_relay", Publication: "cdc_relay", Tables: []TableName{orders, tenders}, Failover: true}
	slot, row, server := goodSlot(), goodRow(), goodServer()
	old := server
	old.Version = 140019
	half := Publication{Tables: []PublishedTable{{Name: orders}}}
	full := Publication{Tables: []PublishedTable{{Name: orders}, {Name: tenders}}}
	for name, c := range map[string]struct {
		setup Setup
		found Found
	}{
		"offline":    {setup, Found{}},
		"new_18":     {setup, Found{Server: server, Snapshot: true}},
		"new_14":     {setup, Found{Server: old}},
		"add_table":  {setup, Found{Server: server, Publication: &half, Slot: &slot, Row: &row}},
		"adopt_slot": {Setup{Slot: "s", Publication: "p's", Tables: setup.Tables, SystemID: "42", Timeline: 3}, Found{Server: server, Publication: &full, Slot: &slot}},
		"nothing":    {setup, Found{Server: server, Publication: &full, Slot: &slot, Row: &row}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := NewPlan(c.setup, c.found)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := plan.Print(&b); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "plan_"+name+".sql", b.Bytes())
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	setup := Setup{Slot: "s", Publication: "p", Tables: []TableName{{"public", "outbox"}}}
	row, full, slot, foreign := goodRow(), goodServer(), goodSlot(), goodSlot()
	full.Slots = full.MaxSlots
	foreign.Plugin = "test_decoding"
	for name, c := range map[string]struct {
		setup Setup
		found Found
		want  string
	}{
		"slot name":      {Setup{Slot: "S"}, Found{}, "is not valid"},
		"known but gone": {setup, Found{Server: goodServer(), Row: &row}, "slot s does not exist, although public.cdc_relay_slots knows it"},
		"no slot left":   {setup, Found{Server: full}, "all 10 replication slots"},
		"foreign slot":   {setup, Found{Server: goodServer(), Publication: &Publication{}, Slot: &foreign}, "output plugin test_decoding"},
		"younger":        {setup, Found{Server: goodServer(), Slot: &slot}, "drop it (SELECT pg_drop_replication_slot('s'))"},
		"dropped":        {setup, Found{Server: goodServer(), Slot: &slot, Row: &row}, "between 0/100 and 0/200"},
	} {
		_, err := NewPlan(c.setup, c.found)
		t.Run(name, func(t *testing.T) { checkFault(t, err, c.want) })
	}
}

func TestPrintGrants(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := PrintGrants(&b, "cdc_relay", "Shop", []TableName{{Schema: "shop", Name: "events"}, {Schema: "Sales", Name: "outbox"}}); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "grants.sql", b.Bytes())
}
