package container

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// basicDevices are what any program may expect.
var basicDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// devices makes a small /dev with terminals and shared memory of its own.
func (v *view) devices() error {
	dev, err := v.mountPoint("/dev", true)
	if err != nil {
		return err
	}
	// No device files in itself, see volumes: those that are shown are mounts of their own.
	flags := uintptr(unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV)
	if err := unix.Mount("tmpfs", dev, "tmpfs", flags, "size=64k,mode=755"); err != nil {
		return fmt.Errorf("cannot mount /dev: %w", err)
	}
	for link, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(dev, link)); err != nil {
			return err
		}
	}
	for _, name := range basicDevices {
		if err := v.device("/dev/"+name, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return err
		}
	}
	err = unix.Mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC,
		"newinstance,ptmxmode=0666,mode=0620")
	if err != nil {
		return fmt.Errorf("cannot mount /dev/pts: %w", err)
	}
	// POSIX message queues belong to the IPC namespace; old or small kernels have none, which few programs notice.
	_ = unix.Mount("mqueue", filepath.Join(dev, "mqueue"), "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if v.spec.Shm != "" {
		if err := bind(v.spec.Shm, filepath.Join(dev, "shm"), 0); err != nil {
			return err
		}
	}
	for _, d := range v.spec.Devices {
		if err := v.device(d.Source, d.Target); err != nil {
			return err
		}
	}
	if v.spec.Privileged {
		return v.allDevices(dev)
	}
	return nil
}

// device shows one device file. It is bound, since making one needs rights on the computer that we may lack.
func (v *view) device(source, target string) error {
	if _, err := os.Stat(source); err != nil {
		return fmt.Errorf("device: %w", err)
	}
	place, err := v.mountPoint(target, false)
	if err != nil {
		return err
	}
	if err := unix.Mount(source, place, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot show the device %s: %w", source, err)
	}
	return nil
}

// allDevices shows all device files of the computer to a privileged container.
func (v *view) allDevices(dev string) error {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	for _, e := range entries {
		target := filepath.Join(dev, e.Name())
		if _, err := os.Lstat(target); err == nil || e.Type()&os.ModeDevice == 0 {
			continue
		}
		if err := touch(target); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+e.Name(), target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
