// Package publish brings rows to Kafka, in order within each partition, and knows
// which of them are settled.
//
// Each partition has a lane: a queue and at most one request in flight. Records are
// encoded as they are queued and sent as record batches with a producer id and
// sequence numbers, acknowledged by all in-sync replicas, and repeated with
// identical bytes until they are. A row settles when its batch is acknowledged.
// Rows of a topic that does not exist wait in the topic's queue, which counts as a
// lane.
//
// Lanes, sequence numbers and what has been settled live as long as the process; a
// [Session] is one pass over the stream, whose rows are numbered. When it ends,
// queued rows are dropped: the server sends them again.
//
// Memory is bounded by one budget over all lanes. There is no spool: a lane that
// cannot proceed stops Publish, and with it all lanes, once its share is used. That
// is deliberate, because the position is confirmed in order anyway.
//
// The package knows nothing of PostgreSQL beyond the LSN type and never decides
// what is confirmed. Package relay calls it.
package publish
