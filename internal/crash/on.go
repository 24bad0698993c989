//go:build crashpoints && unix

package crash

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// plan is what CDC_RELAY_CRASH_AT asks for.
type plan struct {
	point string
	left  atomic.Int64 // passes until it happens
	stop  bool
}

// armed is a package variable since a point is passed deep inside packages that
// know nothing of the lab; it exists in builds for the lab only.
var armed = sync.OnceValue(func() *plan {
	p := &plan{}
	parts := strings.Split(os.Getenv("CDC_RELAY_CRASH_AT"), ":")
	p.point, p.stop = parts[0], len(parts) > 2 && parts[2] == "stop"
	p.left.Store(1)
	if len(parts) > 1 {
		n, _ := strconv.ParseInt(parts[1], 10, 64) // what is no number never happens
		p.left.Store(n)
	}
	return p
})

// At ends or stops the process if the point is armed and its turn has come.
func At(point string) {
	p := armed()
	if p.point != point || p.left.Add(-1) != 0 {
		return
	}
	self := os.Getpid()
	if !p.stop {
		_ = syscall.Kill(self, syscall.SIGKILL)
		select {} // not a step further
	}
	// A signal to a process reaches its threads one after the other, so this one
	// waits until the process has been woken again.
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	_ = syscall.Kill(self, syscall.SIGSTOP)
	<-resumed
}
