package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"trainyard.dev/process-runtime/internal/container"
)

// separate makes the mounts of this namespace its own and shows its own processes in /proc.
func separate() error {
	// What the computer mounts later appears here too; nothing goes the other way.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	return nil
}

// kubeletFolders are hard-wired in the kubelet, whatever its settings say: sockets of device plugins, and links to logs.
// Each node gets them for itself, in memory, and the computer's disk stays as it is.
var kubeletFolders = []string{"/var/lib/kubelet", "/var/log"}

// privateFolders mounts an empty folder at each path.
func privateFolders(paths []string) error {
	for _, path := range paths {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			parent := filepath.Dir(path)
			if err := container.Split(parent, 0); err != nil {
				return fmt.Errorf("cannot make room for %s: %w", path, err)
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=16m,mode=755"); err != nil {
			return fmt.Errorf("cannot mount a private %s: %w", path, err)
		}
	}
	return nil
}
