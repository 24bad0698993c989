package publish

// queue is a first-in, first-out queue of rows and the memory they live in. Its
// methods are called under the publisher's mutex.
type queue struct {
	rows  []row
	head  int    // index of the first row
	tail  *chunk // what rows are appended to
	bytes int    // held, by the budget's account
}

// keepRows is the capacity that an empty queue keeps.
const keepRows = 4096

func (q *queue) len() int       { return len(q.rows) - q.head }
func (q *queue) at(i int) *row  { return &q.rows[q.head+i] }
func (q *queue) oldest() uint64 { return q.seqAt(0) }

// newest is the sequence of the last row, 0 if there is none.
func (q *queue) newest() uint64 {
	if q.len() == 0 {
		return 0
	}
	return q.seqAt(q.len() - 1)
}

// seqAt is the sequence of the i-th row, 0 if there is none.
func (q *queue) seqAt(i int) uint64 {
	if i >= q.len() {
		return 0
	}
	return q.at(i).seq
}

// push appends a row, reusing the room of rows that have left.
func (q *queue) push(r row) {
	if len(q.rows) == cap(q.rows) && q.head > len(q.rows)/2 {
		n := copy(q.rows, q.rows[q.head:])
		clear(q.rows[n:])
		q.rows, q.head = q.rows[:n], 0
	}
	q.rows = append(q.rows, r)
}

// pop removes the first n rows without giving back their memory.
func (q *queue) pop(n int) {
	clear(q.rows[q.head : q.head+n])
	q.head += n
	if q.head < len(q.rows) {
		return
	}
	q.head, q.rows = 0, q.rows[:0]
	if cap(q.rows) > keepRows {
		q.rows = nil
	}
}

// release removes the first n rows and gives back their memory.
func (q *queue) release(b *budget, n int) {
	for i := range n {
		b.release(q, q.at(i))
	}
	q.pop(n)
}

// truncate removes all rows but the first n.
func (q *queue) truncate(b *budget, n int) {
	for i := n; i < q.len(); i++ {
		b.release(q, q.at(i))
	}
	clear(q.rows[q.head+n:])
	q.rows = q.rows[:q.head+n]
	q.pop(0)
}
