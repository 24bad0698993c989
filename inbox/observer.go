package inbox

import "time"

// Observer is told what a [Processor] does. Its methods are called from several
// goroutines at once and while messages wait: they must be safe for that and must not
// block. Embed [NopObserver] to be open for methods that are added later. None of what
// it is told holds a payload or a key.
type Observer interface {
	// Delivered is called at the end of every delivery: each call of
	// [Processor.Process], and each dead or parked message that [Processor.Run] tried.
	Delivered(Delivery)
	// Changed is called when the database goes away or comes back, and when the breaker
	// opens or closes, with the whole state after it.
	Changed(State)
	// Counted is called by [Processor.Run], every 15 seconds and soon after its start.
	Counted(Counts)
	// Pruned is called by [Processor.Run] after each pruning, with the number of settled
	// messages that it deleted, 0 included.
	Pruned(n int64)
}

// Delivery is one attempt to handle a message.
type Delivery struct {
	// Consumer, Topic and Type say whose and what: Type is the header type, "" without one.
	Consumer, Topic, Type string
	// Outcome is what became of the message.
	Outcome Outcome
	// Attempts is how many deliveries of the message have failed, this one included.
	Attempts int
	// Duration is the time that the handler took; 0 when it was not called.
	Duration time.Duration
	// Replayed says that the message was a dead letter and somebody replayed it.
	Replayed bool
	// Gap says that the message waits for an earlier version of its key.
	Gap bool
	// Reason is why a message is dead or parked: max_deliveries, permanent, crashed,
	// no_id, behind or gap; "" otherwise.
	Reason string
	// Err is why the message was not processed; nil for a duplicate and a parked one.
	Err error
}

// State is what keeps a whole consumer from its work.
type State struct {
	// Consumer is the one of [Config].
	Consumer string
	// DatabaseAway says that attempts to use the database fail. It is over when one succeeds
	// and none has failed for a second.
	DatabaseAway bool
	// BreakerOpen says that everything failed, so that one message at a time is tried.
	BreakerOpen bool
	// Err is the failure that changed the state; nil when the change is for the better.
	Err error
}

// Counts are the numbers of a consumer that the database knows, whoever wrote them.
type Counts struct {
	// Consumer is the one of [Config].
	Consumer string
	// DeadLetters wait for somebody's decision, Due for the runner.
	DeadLetters, Due int64
	// Parked messages wait for others, ParkedKeys is of how many keys (of a topic) they are.
	Parked, ParkedKeys int64
	// Attempts is the number of messages that have failed and are not settled yet.
	Attempts int64
	// OldestDead and OldestParked are when the oldest of these was put away;
	// OldestSettled is when the oldest message that is still remembered was settled. Zero
	// when there is none.
	OldestDead, OldestParked, OldestSettled time.Time
}

// NopObserver does nothing. Embed it in an observer that wants only some of the calls.
type NopObserver struct{}

// Delivered does nothing.
func (NopObserver) Delivered(Delivery) {}

// Changed does nothing.
func (NopObserver) Changed(State) {}

// Counted does nothing.
func (NopObserver) Counted(Counts) {}

// Pruned does nothing.
func (NopObserver) Pruned(int64) {}
