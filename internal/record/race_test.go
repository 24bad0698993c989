//go:build race

package record_test

// Under the race detector sync.Pool, which encoding/json uses, forgets at random.
const raceDetector = true
