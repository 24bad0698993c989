//go:build !linux

package wal

import (
	"syscall"
	"time"
)

// socketControl does nothing: there is no TCP_USER_TIMEOUT here. A black-holed
// server is still noticed by its silence, except while the reader is held by
// back-pressure, when the kernel's own retransmission limit applies.
func socketControl(time.Duration) func(network, address string, c syscall.RawConn) error {
	return nil
}

// canGather is false: a raised low-water mark does not keep the reader from
// being woken everywhere.
const canGather = false

func setLowWater(syscall.RawConn, int) error { return nil }

func setReceiveBuffer(syscall.RawConn, int) error { return nil }

func roundTrip(syscall.RawConn) (time.Duration, error) { return 0, nil }
