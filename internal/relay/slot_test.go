package relay

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// A relay that has no room for more rows stops reading and keeps its connection,
// however long that lasts: the server's answers, which it does not see then, are not
// waited for.
func TestFullMemoryKeepsTheConnection(t *testing.T) {
	t.Parallel()
	var sending sync.WaitGroup
	t.Cleanup(sending.Wait) // behind the end of the connection
	r := newRelay(t, newBrokers(), io.Discard)
	fake := newFakeServer(t, r)
	r.cfg.WAL.WALSenderTimeout = 2 * time.Second
	s, server := acquired(t, r, fake)
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	running(t, s)
	sending.Go(func() { // until nobody reads any more
		server.relation("outbox", outboxColumns...)
		server.begin(0x9000)
		for i := range 64 {
			server.order(pglogrepl.LSN(0x8000+i), strings.Repeat("x", 1<<20))
		}
	})
	waitFor(t, r.publisher.Blocked)
	before, _ := server.count()
	waitFor(t, func() bool { // twelve are sent in a wal_sender_timeout
		n, gone := server.count()
		return gone || n >= before+20
	})
	if _, gone := server.count(); gone || !s.stream.Alive() || !r.publisher.Blocked() {
		t.Errorf("the connection is gone: %v; alive: %v; blocked: %v", gone, s.stream.Alive(), r.publisher.Blocked())
		select {
		case <-s.stream.Done():
			t.Errorf("the stream has ended: %v", s.stream.Close())
		default:
		}
	}
}

// silentKafka gives no answer.
type silentKafka struct{}

func (silentKafka) Ping(context.Context) error {
	return &broker.Error{Op: "reach kafka", Err: io.ErrUnexpectedEOF}
}

// The slot is asked for only once Kafka has answered: an instance that cannot publish
// would else take it from one that can.
func TestKafkaComesBeforeTheSlot(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	r.kafka = silentKafka{}
	ran(t, r)
	waitFor(t, func() bool {
		var out Status
		r.state.fill(&out)
		return strings.Contains(strings.Join(out.Problems, "\n"), "reach kafka") || len(server.senders) > 0
	})
	if len(server.senders) > 0 {
		t.Error("the slot is taken")
	}
}

// A server that has not been heard of for a while may have given the slot to another.
// Nothing new is written from then on, before the connection is given up.
func TestNothingNewIsWrittenWithoutProof(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r := newRelay(t, kafka, io.Discard)
	fake := newFakeServer(t, r)
	r.cfg.WAL.WALSenderTimeout = 3 * time.Second
	s, server := acquired(t, r, fake)
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.run(context.Background()) }()
	server.relation("outbox", outboxColumns...)
	server.begin(0x9000)
	server.order(0x8000, "first")
	kafka.wantBatch(t, "first")
	server.order(0x8001, "second") // the last that is heard of the server
	waitFor(t, func() bool { return r.Status().Publisher.Rows == 2 })
	waitFor(t, func() bool { return !s.stream.Alive() })
	kafka.acknowledge()
	waitFor(t, func() bool { return r.Status().Publisher.Rows == 1 })
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("the session ends with %v", err)
	}
	if len(kafka.arrived) > 0 {
		t.Errorf("a batch was sent: %q", <-kafka.arrived)
	}
}
