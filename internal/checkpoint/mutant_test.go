package checkpoint_test

import "github.com/jackc/pglogrepl"

// Mistakes in how the watermark is driven.
const (
	bugMaximum     = "maximum over lanes instead of minimum"
	bugLateLane    = "row reaches its lane after its commit"
	bugSurvives    = "watermark survives the session"
	bugEarlyCommit = "commit is noted before the last row"
)

// Mistakes in the watermark.
const (
	bugKeepaliveOpen      = "keepalive counts while a transaction is open"
	bugKeepaliveUnsettled = "keepalive counts while rows are unsettled"
	bugKeepaliveForgotten = "keepalive that comes at a busy moment is forgotten"
	bugOffByOne           = "the oldest unsettled row counts as settled"
	bugNewest             = "one settled transaction confirms the newest"
	bugBackwards          = "position may go back"
	bugMergeRows          = "a commit replaces the one before it though it has rows"
	bugNoMerge            = "every empty transaction takes memory"
	bugNewestWins         = "any acknowledged row confirms its transaction, whatever came before"
)

// mutant is the plainest watermark that can be written, with a place for each bug.
type mutant struct {
	bug       string
	confirmed pglogrepl.LSN
	rows      uint64
	open      bool
	queue     []mutantCommit
	keepalive pglogrepl.LSN
}

type mutantCommit struct {
	last uint64
	end  pglogrepl.LSN
}

func (m *mutant) Begin()       { m.open = true }
func (m *mutant) Open() bool   { return m.open }
func (m *mutant) Pending() int { return len(m.queue) }

func (m *mutant) Row() uint64 {
	m.rows++
	return m.rows
}

func (m *mutant) Commit(end pglogrepl.LSN) {
	m.open = false
	n := len(m.queue)
	empty := n > 0 && m.queue[n-1].last == m.rows
	switch {
	case n > 0 && m.bug == bugMergeRows, empty && m.bug != bugNoMerge:
		m.queue[n-1].end = end
	default:
		m.queue = append(m.queue, mutantCommit{last: m.rows, end: end})
	}
}

func (m *mutant) Keepalive(walEnd pglogrepl.LSN) {
	if m.bug == bugKeepaliveForgotten && (m.open || len(m.queue) > 0) {
		return
	}
	m.keepalive = max(m.keepalive, walEnd)
}

func (m *mutant) Advance(oldest uint64, inFlight bool) pglogrepl.LSN {
	settled := m.rows
	if inFlight {
		settled = oldest - 1
	}
	switch m.bug {
	case bugOffByOne:
		settled = min(settled+1, m.rows)
	case bugNewestWins:
		settled = m.rows
	}
	was := len(m.queue)
	for len(m.queue) > 0 && m.queue[0].last <= settled {
		m.confirm(m.queue[0].end)
		m.queue = m.queue[1:]
	}
	if m.bug == bugNewest && len(m.queue) < was && len(m.queue) > 0 {
		m.confirm(m.queue[len(m.queue)-1].end)
	}
	busy := m.open && m.bug != bugKeepaliveOpen ||
		(inFlight || len(m.queue) > 0) && m.bug != bugKeepaliveUnsettled
	if !busy {
		m.confirm(m.keepalive)
	}
	return m.confirmed
}

func (m *mutant) confirm(lsn pglogrepl.LSN) {
	if lsn > m.confirmed || m.bug == bugBackwards && lsn > 0 {
		m.confirmed = lsn
	}
}
