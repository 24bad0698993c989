package process

import (
	"os"
	"syscall"
)

func setParentDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// mapUser makes the caller's user and group appear to the child as Unprivileged.
func mapUser(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: Unprivileged, HostID: os.Getuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: Unprivileged, HostID: os.Getgid(), Size: 1}}
}
