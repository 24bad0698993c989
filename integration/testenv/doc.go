// Package testenv gives an integration test its surroundings: a PostgreSQL server and Kafka brokers shared by all tests
// of a test binary, and in them a database, a slot name and topic names of the test's own.
//
// Every package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
package testenv
