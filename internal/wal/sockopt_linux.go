package wal

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	return setInt(c, syscall.SO_RCVLOWAT, bytes)
}

// setReceiveBuffer fixes the size of the receive buffer (SO_RCVBUF of socket(7)).
func setReceiveBuffer(c syscall.RawConn, bytes int) error {
	return setInt(c, syscall.SO_RCVBUF, bytes)
}

func setInt(c syscall.RawConn, option, value int) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, option, value)
	})
	if err != nil {
		return err
	}
	return failed
}

// roundTrip is the least time that an answer of the peer's kernel has taken.
func roundTrip(c syscall.RawConn) (time.Duration, error) {
	var info *unix.TCPInfo
	var failed error
	err := c.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(info.Min_rtt) * time.Microsecond, nil
}
