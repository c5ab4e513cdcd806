package seccomp

import "golang.org/x/sys/unix"

const architecture = unix.AUDIT_ARCH_AARCH64

// chownCalls change owners of files.
var chownCalls = []uint32{unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}
