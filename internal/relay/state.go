package relay

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// Role says what the process does right now.
type Role string

// The roles a relay goes through. A standby is healthy: it waits for the slot
// that another process holds.
const (
	RoleStarting Role = "starting" // looking for servers, not yet asked for the slot
	RoleStandby  Role = "standby"  // the slot is held by another process
	RoleLeader   Role = "leader"   // this process holds the slot and streams
	RoleStopping Role = "stopping" // draining after a signal
)

// Status is a snapshot of the relay for health checks, metrics and people. It
// holds no payload, no record key and no secret.
type Status struct {
	Role   Role
	Since  time.Time // when Role was entered
	Slot   string
	Holder string // who holds the slot while Role is standby

	// Problems are the reasons for not being ready, empty when ready.
	Problems []string

	Connected   bool          // the replication stream is up
	Received    pglogrepl.LSN // highest position received that may once be confirmed
	Confirmed   pglogrepl.LSN // position confirmed to the server
	LastMessage time.Time     // when the last message arrived on the stream
	LastConfirm time.Time     // when Confirmed last moved

	Transactions uint64 // commits received since the process started
	Rows         uint64 // outbox rows received since the process started

	Publisher publish.Snapshot
}

// Ready reports whether a readiness probe should succeed: the relay streams
// and Kafka takes what it sends, or it is a healthy standby.
func (s Status) Ready() bool { return len(s.Problems) == 0 }

// state is what the goroutines of the relay tell each other about the
// process. Its mutex guards plain fields only and is held for no I/O.
type state struct {
	mu       sync.Mutex
	role     Role
	since    time.Time
	holder   string
	problems map[string]problem // by source
	session  *session           // the one that streams, else nil

	received, confirmed pglogrepl.LSN // of the last session, once it has ended
	lastMoved           time.Time
}

// problem is one reason for not being ready.
type problem struct {
	text   string
	logged time.Time
}

func newState() *state {
	return &state{role: RoleStarting, since: time.Now(), problems: map[string]problem{}}
}

// enter notes the role and, for a standby, who holds the slot. It reports
// whether either changed.
func (s *state) enter(role Role, holder string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed = s.role != role || s.holder != holder; changed {
		if s.role != role {
			s.since = time.Now()
		}
		s.role, s.holder = role, holder
	}
	return changed
}

// fail records why the relay is not ready and reports whether the source had
// no problem before, so that a fault is logged once.
func (s *state) fail(source, text string) (began bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.problems[source]
	if !had {
		old.logged = time.Now()
	}
	s.problems[source] = problem{text: text, logged: old.logged}
	return !had
}

// halt is fail for a fault that somebody must act on: it reports true at the
// change and again every five minutes.
func (s *state) halt(source, text string) (say bool) {
	if s.fail(source, text) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.problems[source]
	if time.Since(p.logged) < reminder {
		return false
	}
	p.logged = time.Now()
	s.problems[source] = p
	return true
}

// clear removes the source's problem and reports whether there was one.
func (s *state) clear(source string) (had bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, had = s.problems[source]
	delete(s.problems, source)
	return had
}

// stream notes the session that streams, nil when it has ended.
func (s *state) stream(running *session) {
	if running != nil {
		s.enter(RoleLeader, "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if running == nil && s.session != nil {
		s.received, s.confirmed = s.session.stream.ReceivedLSN(), s.session.stream.Confirmed()
	}
	s.session = running
}

// moved notes that the confirmed position has moved.
func (s *state) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastMoved = time.Now()
}

// Status returns a snapshot. It is safe for concurrent use.
func (r *Relay) Status() Status {
	out := Status{
		Slot:         r.cfg.Spec.Slot,
		Transactions: r.metrics.transactions.Load(),
		Rows:         r.metrics.rows.Load(),
		Publisher:    r.publisher.Snapshot(),
	}
	r.state.fill(&out)
	out.Problems = append(out.Problems, out.Publisher.Problems()...)
	return out
}

func (s *state) fill(out *Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Role, out.Since, out.Holder = s.role, s.since, s.holder
	out.Received, out.Confirmed, out.LastConfirm = s.received, s.confirmed, s.lastMoved
	if s.session != nil {
		stream := s.session.stream
		out.Connected, out.Received, out.Confirmed = true, stream.ReceivedLSN(), stream.Confirmed()
		out.LastMessage = stream.LastRead()
		if !stream.Alive() {
			out.Problems = append(out.Problems, "postgres: the replication connection gives no sign of life")
		}
		if held := stream.HeldBack(); held != nil {
			out.Problems = append(out.Problems, "postgres: "+held.Message)
		}
	} else if s.role != RoleStandby && len(s.problems) == 0 {
		out.Problems = append(out.Problems, "starting: not streaming yet")
	}
	for _, source := range slices.Sorted(maps.Keys(s.problems)) {
		out.Problems = append(out.Problems, source+": "+s.problems[source].text)
	}
}
