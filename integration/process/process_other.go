//go:build unix && !linux

package process

import "syscall"

// setParentDeathSignal does nothing: only Linux has that signal.
func setParentDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

func mapUser(*syscall.SysProcAttr) {}
