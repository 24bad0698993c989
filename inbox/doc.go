// Package inbox has each message take effect exactly once, in a PostgreSQL database of the
// consumer's. A broker delivers at least once: copies come after crashes, rebalances and
// replays. The inbox is a table with the ids of the messages that a consumer has settled;
// a message is claimed there in the transaction of its effect, so that both are committed
// or neither is. The primary key decides, not a look beforehand.
//
// There are three levels, each usable alone:
//
//   - [Once] claims a message in a transaction of your own.
//   - [Processor] opens the transaction, claims, calls a [Handler] and commits; it counts
//     what fails, makes dead letters, and keeps the order of a key. [Processor.Run] handles
//     what was put away.
//   - Package inboxkafka reads topics as a member of a consumer group and drives a
//     Processor.
//
// The tables come from migrations/005_cdc_relay_inbox.up.sql
// (cdc-relay migrate up --only cdc_relay_inbox). The package does not need the relay: any
// message with a unique id will do. What a handler does outside the database may happen
// more than once; see [IdempotencyKey].
package inbox
