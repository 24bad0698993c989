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
	// gatherBuffer is the largest read, and what a pause is meant to bring.
	gatherBuffer = 256 << 10
	// lowWater is the mark at which the reader would be woken in spite of all. The
	// kernel makes room for that much.
	lowWater = 1 << 20
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
	full    bool          // the last read left something behind
	since   time.Duration // start of the window
	bytes   int           // that came in the window

	buf  []byte // allocated when it is first needed
	rest []byte // of buf, not handed out yet
	wake *time.Timer
}

// newGatherer returns a gatherer for c, which gathers if that is a socket.
func newGatherer(c net.Conn) gatherer {
	g := gatherer{conn: c}
	if s, ok := c.(syscall.Conn); ok && canGather {
		g.socket, _ = s.SyscallConn()
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
		if !g.full {
			g.pause()
		}
		n, err = g.conn.Read(g.buf)
		g.observe(n, now)
		g.rest, g.full, fresh = g.buf[:n], n == len(g.buf), n > 0
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
	if setLowWater(g.socket, lowWater) != nil {
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
