// Package consumer is a consumer in a process of its own, which can be killed: the binary of the test, started again.
// What it does for each event is one row in a table that takes the same row twice, so that a second effect shows.
package consumer
