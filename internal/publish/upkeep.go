package publish

import "time"

// charge counts the memory of the batch itself, once it is known. It never waits:
// what it adds beyond the budget keeps the next rows out.
func (l *lane) charge(b *batch) {
	if b.charged == 0 {
		b.charged = b.memory()
		l.p.budget.charge(&l.queue, b.charged)
	}
}

// late marks everything that a request without an answer may still read.
func (l *lane) late(b *batch) {
	if b.late {
		return
	}
	b.late = true
	for i := range b.n {
		l.queue.at(i).chunk.late = true
	}
}

// release ends the lane's batch but leaves its rows in the queue.
func (l *lane) release() {
	b := l.batch
	l.batch = nil
	l.p.budget.charge(&l.queue, -b.charged)
	if !b.late {
		l.p.batches.Put(b)
	}
}

// abandon ends a batch of a session that is over, of which nothing was written.
func (l *lane) abandon() { l.discard(l.batch) }

// discard ends a batch and forgets its rows.
func (l *lane) discard(b *batch) {
	n := b.n
	l.release()
	l.drop(n)
	l.recovered(time.Now())
	l.topic.regroup()
}

// drop removes the first n rows of the queue.
func (l *lane) drop(n int) {
	l.queue.release(&l.p.budget, n)
	l.p.rows -= n
	l.p.freed()
}
