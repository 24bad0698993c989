package wal

import (
	"net"
	"syscall"
	"time"
)

// The server sends each message with a system call of its own, and a reader
// that waits is woken by each: under load the wake-up costs server and reader
// more than the message. So while data comes fast the reader lets it pile up in
// the socket for a moment before it reads, with the low-water mark of the socket
// raised, so that nobody is woken meanwhile. Everything behind the reader gains
// too, as batches for Kafka grow. A slow stream is read as it comes.
//
// The receive buffer is kept small where the way is short. Then most of what
// piles up does so at the sender, in its send buffer, where a message costs no
// more than a copy, instead of a packet each. It is set before the first byte and
// never changed: below a window that has grown it would overflow once nobody reads,
// and a kernel that drops what overflows drops the sender's acknowledgements with
// it, until TCP_USER_TIMEOUT ends a connection that nothing is wrong with.
const (
	// gatherPause is how long data may pile up at most: what gathering adds to the
	// latency of a row, under load only.
	gatherPause = 5 * time.Millisecond
	// backlogPause is the same for rows that are older than backlogAge already.
	backlogPause = 20 * time.Millisecond
	backlogAge   = time.Second
	// gatherBytes in gatherWindow is load: some 5,000 rows a second.
	gatherBytes  = 64 << 10
	gatherWindow = 20 * time.Millisecond
	// gatherBuffer is the largest read, what a pause is meant to bring, and the mark
	// at which the reader is woken in spite of all.
	gatherBuffer = 256 << 10
	// gatherMore in one read says that more may be had without a pause.
	gatherMore = 16 << 10
	// shortWay is the round trip up to which the receive buffer is kept at
	// shortBuffer: that much a round trip is no limit to speak of (128 MiB/s).
	shortWay    = 500 * time.Microsecond
	shortBuffer = 64 << 10
)

// gatherer reads from a connection, in few large reads while data comes fast. It
// belongs to the reader.
type gatherer struct {
	conn   net.Conn
	socket syscall.RawConn // nil where gathering is not possible
	before func()          // called before each read of the socket, may be nil

	backlog bool          // what comes is older than backlogAge; set by the reader
	fast    bool          // data comes fast
	spacing time.Duration // in which gatherBuffer bytes come
	more    bool          // the last read was large
	since   time.Duration // start of the window
	bytes   int           // that came in the window

	buf  []byte // allocated when it is first needed
	rest []byte // of buf, not handed out yet
	wake *time.Timer
}

// newGatherer returns a gatherer for c, which gathers if that is a socket. Nothing
// may have been read from c yet, so that the window has not grown.
func newGatherer(c net.Conn) gatherer {
	g := gatherer{conn: c}
	if s, ok := c.(syscall.Conn); ok && canGather {
		g.socket, _ = s.SyscallConn()
	}
	if g.socket != nil {
		if way, err := roundTrip(g.socket); err == nil && way <= shortWay {
			_ = setReceiveBuffer(g.socket, shortBuffer) // It is faster so, not more.
		}
	}
	return g
}

// read is Read of an io.Reader. now tells the time on any clock; fresh says that
// something came from the socket.
func (g *gatherer) read(p []byte, now func() time.Duration) (n int, fresh bool, err error) {
	if len(g.rest) == 0 {
		if g.before != nil {
			g.before()
		}
		if g.socket == nil || !g.fast && !g.backlog {
			n, err = g.conn.Read(p)
			g.observe(n, now)
			return n, n > 0, err
		}
		if g.buf == nil {
			g.buf = make([]byte, gatherBuffer)
		}
		if !g.more {
			g.pause()
		}
		n, err = g.conn.Read(g.buf)
		g.observe(n, now)
		g.rest, g.more, fresh = g.buf[:n], n >= gatherMore, n > 0
	}
	n = copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, fresh, err
}

// pause waits while data piles up. The mark is back at one byte before the read,
// which so may wait for as long as it must.
func (g *gatherer) pause() {
	length := gatherPause
	if g.backlog {
		length = backlogPause
	}
	length = min(length, g.spacing)
	if setLowWater(g.socket, gatherBuffer) != nil {
		return
	}
	if g.wake == nil {
		g.wake = time.NewTimer(length)
	} else {
		g.wake.Reset(length)
	}
	<-g.wake.C
	_ = setLowWater(g.socket, 1) // Fails only when the connection is closed; so does the read.
}

// observe judges at the end of each window whether data comes fast.
func (g *gatherer) observe(n int, now func() time.Duration) {
	if g.socket == nil {
		return
	}
	g.bytes += n
	at := now()
	if elapsed := at - g.since; elapsed >= gatherWindow && g.bytes > 0 {
		g.spacing = time.Duration(int64(elapsed) / int64(g.bytes) * gatherBuffer)
		g.fast = g.spacing <= gatherWindow/gatherBytes*gatherBuffer
		g.since, g.bytes = at, 0
	}
}
