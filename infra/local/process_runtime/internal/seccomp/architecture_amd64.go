package seccomp

import "golang.org/x/sys/unix"

const architecture = unix.AUDIT_ARCH_X86_64

// chownCalls change owners of files.
var chownCalls = []uint32{unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWNAT}
