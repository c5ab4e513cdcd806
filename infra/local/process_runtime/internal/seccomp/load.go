// Package seccomp writes small system call filters as BPF programs, without libseccomp (which would need cgo).
package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Load puts the calling thread, and all that it starts, under a filter. The caller must be locked to its thread.
func Load(program []unix.SockFilter) error {
	if len(program) == 0 {
		return nil
	}
	head := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&head)), 0, 0)
	runtime.KeepAlive(program)
	if err != nil {
		return fmt.Errorf("cannot load a system call filter: %w", err)
	}
	return nil
}
