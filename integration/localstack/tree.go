package localstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A PostgreSQL server is one process per connection, each the leader of a session of its own, so that no signal to a
// process group reaches them all. The functions below signal a process and its children. They find them in /proc, so
// they work on Linux only.

// stopTree has a process and its children stand still, and returns what lets them go on.
func stopTree(pid int) (resume func(), err error) {
	var stopped []int
	resume = func() {
		for _, pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGCONT) // It may have been killed meanwhile.
		}
	}
	stop := func(pid int) error {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return ignoreGone(err)
		}
		stopped = append(stopped, pid)
		return await(pid, "stop", "T")
	}
	if err := stop(pid); err != nil { // From here on there are no new children.
		return resume, err
	}
	children, err := childrenOf(pid)
	for _, child := range children {
		err = errors.Join(err, stop(child))
	}
	return resume, err
}

// killTree ends a process and its children without a word, and waits until they have ended: as long as one of them has
// not, it holds memory that the next server refuses to share.
func killTree(pid int) error {
	if resume, err := stopTree(pid); err != nil {
		resume()
		return err
	}
	all, err := childrenOf(pid)
	all = append(all, pid)
	for _, child := range all {
		err = errors.Join(err, ignoreGone(syscall.Kill(child, syscall.SIGKILL)))
	}
	for _, child := range all {
		err = errors.Join(err, await(child, "end", "X"))
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("list processes: /proc is not there")
	}
	var children []int
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, parent, alive := processState(child); alive && parent == pid {
			children = append(children, child)
		}
	}
	return children, nil
}

// await waits until the process is in a state, or has ended: one that waits for a disk takes a signal later.
func await(pid int, what, want string) error {
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		state, _, alive := processState(pid)
		if !alive || state == want || state == "Z" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not %s", pid, what)
		}
		<-tick.C
	}
}

// processState reads what the kernel says of a process; alive is false when there is none.
func processState(pid int) (state string, parent int, alive bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0, false
	}
	// The name, in parentheses, may contain anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}
