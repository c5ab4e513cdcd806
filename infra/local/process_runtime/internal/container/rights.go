package container

import (
	"fmt"

	"golang.org/x/sys/unix"
	"trainyard.dev/process-runtime/internal/seccomp"
)

// dropRights takes from the calling thread, and so from all that it starts, what the container may not have. Other
// threads of the init keep their rights: they must be able to send signals to processes of another user.
func dropRights(spec *Spec) error {
	keep := map[uintptr]bool{}
	for _, c := range spec.Capabilities {
		keep[c] = true
	}
	for c := uintptr(0); c <= uintptr(LastCapability()); c++ {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot drop capability %d: %w", c, err)
		}
	}
	if spec.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot set no_new_privs: %w", err)
		}
	}
	for _, program := range spec.Seccomp {
		if err := seccomp.Load(program); err != nil {
			return err
		}
	}
	return nil
}
