// Package crash lets the fault lab end the process at a named point, which no
// signal from outside can hit. In an ordinary build [At] is empty and is
// compiled away.
//
// Built with the tag crashpoints, the variable CDC_RELAY_CRASH_AT arms one
// point: "point", "point:n" for its n-th pass (default 1), or "point:n:stop".
// The process then sends itself SIGKILL, or SIGSTOP and goes on after SIGCONT.
package crash

// The points. Each is where an outside world that has been changed and what the
// process knows of it differ most.
const (
	// Produced: the broker has acknowledged a batch and its lane does not know it
	// yet.
	Produced = "produced"
	// Scanned: a partition has been read to find where to go on, and nothing has
	// been written to it.
	Scanned = "scanned"
	// Watermark: the position to confirm has moved and the server has not been
	// told.
	Watermark = "watermark"
	// Confirmed: the position has been handed to the stream, whose next status update
	// tells the server.
	Confirmed = "confirmed"
	// DeadLetter: a row is about to be written to the dead letters.
	DeadLetter = "dead_letter"
	// DeadLettered: it is in the dead letters, and its lane does not know it yet.
	DeadLettered = "dead_lettered"
	// Replaying: a dead letter has been read to be published again, and no lane has it.
	Replaying = "replaying"
	// Draining: a stop waits for acknowledgements.
	Draining = "draining"
)
