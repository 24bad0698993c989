//go:build !race

package record_test

const raceDetector = false
