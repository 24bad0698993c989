package localstack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Port is a TCP port on 127.0.0.1 that no other user of this package takes while it is held, so that a server can
// stop and come back on it.
type Port struct {
	number int
	lock   *fileLock
}

// Ports lie below the range from which the kernel serves outgoing connections (32768 on Linux, 49152 on macOS): one of
// those could otherwise sit on the port of a server that is down for a moment.
const firstPort, lastPort = 20000, 32000

// ReservePort finds a free port. The caller releases it.
func ReservePort() (*Port, error) {
	root, err := runRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create port lock directory: %w", err)
	}
	for range 1000 {
		number := firstPort + rand.IntN(lastPort-firstPort)
		lock, err := tryLock(filepath.Join(dir, strconv.Itoa(number)))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(number))
		if err != nil {
			lock.unlock()
			continue
		}
		listener.Close()
		return &Port{number: number, lock: lock}, nil
	}
	return nil, fmt.Errorf("find a free port on 127.0.0.1 between %d and %d: all are taken", firstPort, lastPort)
}

// Release gives the port up. A process that ends releases its ports.
func (p *Port) Release() { p.lock.unlock() }

// Number returns the number of the port.
func (p *Port) Number() int { return p.number }

// Addr returns host and port.
func (p *Port) Addr() string { return "127.0.0.1:" + strconv.Itoa(p.number) }
