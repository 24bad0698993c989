package wal

import (
	"strings"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), which package syscall does not
// name on every architecture.
const tcpUserTimeout = 0x12

// socketControl bounds how long written bytes may stay unacknowledged before
// the kernel ends the connection. It is what tells a black-holed server while
// the reader is held by back-pressure and does not see answers.
func socketControl(limit time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		})
		if err != nil {
			return err
		}
		return failed
	}
}

// canGather says that setLowWater does what it says.
const canGather = true

// setLowWater sets how many bytes must have come before a reader that waits is
// woken (SO_RCVLOWAT of socket(7)).
func setLowWater(c syscall.RawConn, bytes int) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
	})
	if err != nil {
		return err
	}
	return failed
}
