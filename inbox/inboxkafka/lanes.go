package inboxkafka

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// lanes hands out messages to workers: those of one key of one partition one after the
// other, others at the same time. A message that is to be tried again keeps its lane, and
// no worker, while it waits.
type lanes struct {
	ready chan *lane // has room for every lane

	mu   sync.Mutex
	keys map[laneKey]*lane
}

type laneKey struct {
	partition *partition
	key       string
}

// lane is the messages of a key, the first of which is being handled or waits to be.
type lane struct {
	id       laneKey
	keyed    bool
	messages []inbox.Message
}

// newLanes returns lanes for at most n messages at a time.
func newLanes(n int) *lanes {
	return &lanes{ready: make(chan *lane, n), keys: map[laneKey]*lane{}}
}

// add queues a message.
func (l *lanes) add(p *partition, m inbox.Message) {
	if m.Key == nil { // no order: a lane of its own
		l.ready <- &lane{id: laneKey{partition: p}, messages: []inbox.Message{m}}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := laneKey{p, string(m.Key)}
	if queue, ok := l.keys[id]; ok {
		queue.messages = append(queue.messages, m)
		return
	}
	queue := &lane{id: id, keyed: true, messages: []inbox.Message{m}}
	l.keys[id] = queue
	l.ready <- queue
}

// first is the message of a lane that is to be handled.
func (l *lanes) first(queue *lane) inbox.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return queue.messages[0]
}

// settled takes the first message off its lane.
func (l *lanes) settled(queue *lane) {
	if !queue.keyed {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if queue.messages = queue.messages[1:]; len(queue.messages) == 0 {
		delete(l.keys, queue.id)
		return
	}
	l.ready <- queue
}

// again has the first message of the lane tried once more after a while.
func (l *lanes) again(queue *lane, after time.Duration) {
	if after <= 0 {
		l.ready <- queue
		return
	}
	time.AfterFunc(after, func() { l.ready <- queue })
}
