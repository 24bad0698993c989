//go:build unix && !linux

package localstack

import "syscall"

// setParentDeathSignal does nothing: only Linux has that signal. A server whose parent was killed is ended by the next
// sweep.
func setParentDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
