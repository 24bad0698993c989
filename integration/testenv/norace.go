//go:build !race

package testenv

// raceEnabled says that this test binary looks for data races, and that the relay that it runs is to do so too.
const raceEnabled = false
