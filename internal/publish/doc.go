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
// Where a lane cannot know what its partition holds, it reads it before it writes:
// when it opens and rows come that an earlier process may have published, after a
// reconnect, and when the broker cannot tell what became of a batch. The highest
// position of the lane's own rows found there is an anchor. Rows up to it are passed
// over provisionally, and hold the watermark, until the anchor's own row comes by with
// the same message id: positions are used again after a restore, and tools copy
// records. An anchor that is not proved ends the session ([HistoryError]). To publish
// again is always safe; to pass over has to be proved. After a reading a lane sends one
// row first: if its offset is not the one where the reading ended, somebody else
// writes, and what lies between is read as well.
//
// Memory is bounded by one budget over all lanes. There is no spool: a lane that
// cannot proceed stops Publish, and with it all lanes, once its share is used. That
// is deliberate, because the position is confirmed in order anyway.
//
// The package knows nothing of PostgreSQL beyond the LSN type and never decides
// what is confirmed. Package relay calls it.
package publish
