package proxy

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

// spoil is what is wrong with one direction.
type spoil struct {
	stalled bool
	delay   time.Duration
	rate    int // bytes per second and connection; 0 is no limit
	trap    *trap
}

// trap stalls once a text is read.
type trap struct {
	text   []byte
	sprung chan struct{}
}

// fault is a spoil that can be changed and waited for.
type fault struct {
	mu      sync.Mutex
	now     spoil
	changed chan struct{} // closed and replaced at every change
}

func (f *fault) init() { f.changed = make(chan struct{}) }

func (f *fault) change(by func(*spoil)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by(&f.now)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fault) get() (spoil, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.changed
}

// spring stalls if the trap's text has been read.
func (f *fault) spring(data []byte) {
	f.mu.Lock()
	t := f.now.trap
	f.mu.Unlock()
	if t == nil || !bytes.Contains(data, t.text) {
		return
	}
	f.change(func(s *spoil) {
		if s.trap == t {
			s.stalled, s.trap = true, nil
			close(t.sprung)
		}
	})
}

// chunk is a piece of the stream.
type chunk struct {
	data []byte
	read time.Time
}

// The queue bounds what a delay or a stall holds back.
const (
	chunkBytes  = 16 << 10
	queueChunks = 64
)

// carry copies from one connection to the other, and returns when the stream ends or ctx does. Reading goes on during a
// delay, so that a delay costs no throughput until the queue is full.
func carry(ctx context.Context, all *sync.WaitGroup, to, from net.Conn, f *fault) {
	queue := make(chan chunk, queueChunks)
	all.Go(func() { f.read(ctx, from, queue) })
	for c := range queue {
		for len(c.data) > 0 {
			piece := c.data
			if s, _ := f.get(); s.rate > 0 { // Fifty pieces a second, not one burst now and then.
				piece = piece[:min(len(piece), max(1, s.rate/50))]
			}
			if !f.admit(ctx, c.read, len(piece)) {
				return
			}
			if _, err := to.Write(piece); err != nil {
				return
			}
			c.data = c.data[len(piece):]
		}
	}
	f.admit(ctx, time.Now(), 0) // A stall hides the end of the stream too.
}

// read fills the queue until the stream or ctx ends, and closes it.
func (f *fault) read(ctx context.Context, from net.Conn, queue chan<- chunk) {
	defer close(queue)
	for {
		buffer := make([]byte, chunkBytes)
		n, err := from.Read(buffer)
		if n > 0 {
			f.spring(buffer[:n])
			select {
			case queue <- chunk{data: buffer[:n], read: time.Now()}:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// admit waits until a chunk that was read at a time may pass. It returns false when ctx ends first.
func (f *fault) admit(ctx context.Context, read time.Time, bytes int) bool {
	began := time.Now()
	for {
		s, changed := f.get()
		due := read.Add(s.delay)
		if s.rate > 0 {
			paced := began.Add(time.Duration(bytes) * time.Second / time.Duration(s.rate))
			if paced.After(due) {
				due = paced
			}
		}
		wait := time.Until(due)
		if !s.stalled && wait <= 0 {
			return ctx.Err() == nil
		}
		var timer <-chan time.Time
		if !s.stalled {
			timer = time.After(wait)
		}
		select {
		case <-timer:
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
