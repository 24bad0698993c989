// Package position says where a record comes from in the write-ahead log, and
// carries that in one header of every record.
//
// A [Position] orders everything that one slot emits. It is unique, never
// decreases in stream order and is the same in every decode of the same log,
// whatever publications and options decode it. It means something only together
// with the history, the timeline, the routing and the partition count it was
// written under; a [Stamp] is all of these, and what the header holds.
//
// The package is pure: no I/O and no state. What consumers may rely on is in
// docs/position-header.md.
package position
