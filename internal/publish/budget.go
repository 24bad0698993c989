package publish

import "sync"

const (
	// chunkBytes is the unit in which queues take memory. Small, because every
	// partition with rows holds at least one.
	chunkBytes = 16 << 10
	// ownBytes is the size from which a row gets a chunk of its own.
	ownBytes = chunkBytes / 2
)

// chunk is a piece of memory that holds the encoded bytes of some rows.
type chunk struct {
	buf  []byte
	rows int // rows that still use it, all of one queue
	// late means that a request with these bytes ended without an answer: the
	// transport may still be reading them, so they go to the garbage collector
	// instead of back to the pool.
	late bool
}

// budget bounds the memory of all queues. Its methods are called under the
// publisher's mutex.
type budget struct {
	limit, share int
	used         int
	pool         sync.Pool // of *chunk with chunkBytes capacity
}

// need is what a row of size bytes would take in q.
func (b *budget) need(q *queue, size int) int {
	switch {
	case size >= ownBytes:
		return size + rowBytes
	case q.tail != nil && cap(q.tail.buf)-len(q.tail.buf) >= size:
		return rowBytes
	}
	return chunkBytes + rowBytes
}

// fits reports whether q may take n more bytes now.
func (b *budget) fits(q *queue, n int) bool {
	switch {
	case n > b.limit:
		return b.used == 0
	case n > b.share:
		return q.bytes == 0 && b.used+n <= b.limit
	}
	return q.bytes+n <= b.share && b.used+n <= b.limit
}

func (b *budget) charge(q *queue, n int) {
	q.bytes += n
	b.used += n
}

// reserve returns an empty slice with room for the size bytes of a row of q.
func (b *budget) reserve(q *queue, size int) (*chunk, []byte) {
	if size >= ownBytes {
		b.charge(q, size)
		c := &chunk{buf: make([]byte, size), rows: 1}
		return c, c.buf[:0]
	}
	c := q.tail
	if c == nil || cap(c.buf)-len(c.buf) < size {
		c, _ = b.pool.Get().(*chunk)
		if c == nil {
			c = &chunk{buf: make([]byte, 0, chunkBytes)}
		}
		*c = chunk{buf: c.buf[:0]}
		b.charge(q, chunkBytes)
		q.tail = c
	}
	c.rows++
	start := len(c.buf)
	c.buf = c.buf[:start+size]
	return c, c.buf[start : start : start+size]
}

// release gives back the memory of one row of q. A queue that becomes empty keeps
// nothing: there may be thousands.
func (b *budget) release(q *queue, r *row) {
	b.charge(q, -rowBytes)
	c := r.chunk
	if c.rows--; c.rows > 0 {
		return
	}
	if q.tail == c {
		q.tail = nil
	}
	b.charge(q, -cap(c.buf))
	if cap(c.buf) == chunkBytes && !c.late {
		b.pool.Put(c)
	}
}

// move appends a row of one queue to another, whose memory it takes from then on.
// It never waits: what it adds to the other's share keeps the next rows out.
func (b *budget) move(from, to *queue, r row) {
	size := len(r.body) + len(r.id)
	c, buf := b.reserve(to, size)
	b.charge(to, rowBytes)
	buf = append(append(buf, r.body...), r.id...)
	b.release(from, &r)
	r.chunk, r.body, r.id = c, buf[:len(r.body):len(r.body)], buf[len(r.body):]
	to.push(r)
}
