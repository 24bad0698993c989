package catalog

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Move is a slot that stands further on than the position recorded for it: what was
// committed between the two may never have been sent.
type Move struct {
	Slot     string
	From, To pglogrepl.LSN
	// Exact says that the relay recorded From as the last thing it did with the slot.
	// Else it may have confirmed more before it ended.
	Exact bool
	// Recorded is when From was recorded.
	Recorded time.Time
}

// Moved compares a slot with the relay's record of it. Positions of another timeline
// mean something else, so nothing can be told then.
func (s Slot) Moved(timeline uint32, row SlotRow) (Move, bool) {
	if row.Confirmed == 0 || row.Timeline != timeline || s.Confirmed <= row.Confirmed {
		return Move{}, false
	}
	return Move{Slot: s.Name, From: row.Confirmed, To: s.Confirmed, Exact: row.CleanStop, Recorded: row.ConfirmedAt}, true
}

// Warning says what may have happened and what to look at.
func (m Move) Warning() Warning {
	const advanced = "find out who called pg_replication_slot_advance or read the slot, and compare the outbox rows of that time with the topics; " +
		"cdc-relay goes on from the slot's position"
	if m.Exact {
		return Warning{
			Check: "slot",
			Problem: fmt.Sprintf("slot %s was moved by somebody else, from %s, where cdc-relay had stopped, to %s: "+
				"events committed between the two may be missing from the topics", m.Slot, m.From, m.To),
			Next: advanced,
		}
	}
	return Warning{
		Check: "slot",
		Problem: fmt.Sprintf("slot %s stands at %s, and the position recorded last is %s (%s): cdc-relay did not stop cleanly, "+
			"so this check is not exact, and whether somebody else has moved the slot cannot be told",
			m.Slot, m.To, m.From, m.Recorded.UTC().Format(time.RFC3339)),
		Next: "nothing, unless somebody called pg_replication_slot_advance or read the slot: then compare the outbox rows of that time with the topics",
	}
}
