package container

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// bind mounts source at target together with what is mounted below it, then sets attributes on all of it.
func bind(source, target string, attributes uint64) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot mount %s at %s: %w", source, target, err)
	}
	return setAttributes(target, attributes, true)
}

// setAttributes adds mount attributes (read-only, no device files, no set-user-ID).
func setAttributes(target string, attributes uint64, recursive bool) error {
	if attributes == 0 {
		return nil
	}
	flags := uint(unix.AT_SYMLINK_NOFOLLOW)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	err := unix.MountSetattr(unix.AT_FDCWD, target, flags, &unix.MountAttr{Attr_set: attributes})
	if errors.Is(err, unix.ENOSYS) {
		err = remount(target, attributes) // Linux before 5.12: the topmost mount only
	}
	if err != nil {
		return fmt.Errorf("cannot restrict the mount %s: %w", target, err)
	}
	return nil
}

// remount is setAttributes for old kernels. Flags that the mount already has must be repeated in a user namespace.
func remount(target string, attributes uint64) error {
	var old unix.Statfs_t
	if err := unix.Statfs(target, &old); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
	for _, f := range []struct {
		attribute    uint64
		statfs, flag uintptr
	}{
		{unix.MOUNT_ATTR_RDONLY, unix.ST_RDONLY, unix.MS_RDONLY},
		{unix.MOUNT_ATTR_NOSUID, unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.MOUNT_ATTR_NODEV, unix.ST_NODEV, unix.MS_NODEV},
		{unix.MOUNT_ATTR_NOEXEC, unix.ST_NOEXEC, unix.MS_NOEXEC},
	} {
		if attributes&f.attribute != 0 || uintptr(old.Flags)&f.statfs != 0 {
			flags |= f.flag
		}
	}
	return unix.Mount("", target, "", flags, "")
}

// Split replaces the folder dir by an in-memory one that shows the same children, so that new mount points can be made
// in it without touching the disk. attributes are set on what is bound.
func Split(dir string, attributes uint64) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list %s: %w", dir, err)
	}
	if err := mountTmpfs(dir, fmt.Sprintf("size=1m,mode=%o", info.Mode().Perm())); err != nil {
		return err
	}
	for _, e := range entries {
		// The folder itself is covered now; its open descriptor still leads to the children.
		source, target := fmt.Sprintf("/proc/self/fd/%d/%s", fd, e.Name()), dir+"/"+e.Name()
		if err := copyEntry(source, target, e, attributes); err != nil {
			return err
		}
	}
	return nil
}

// copyEntry shows a file, folder or link of the computer at target; sockets and pipes are left out.
func copyEntry(source, target string, e os.DirEntry, attributes uint64) error {
	switch {
	case e.Type()&os.ModeSymlink != 0:
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(to, target)
	case e.IsDir():
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
	case e.Type().IsRegular() || e.Type()&os.ModeDevice != 0:
		if err := touch(target); err != nil {
			return err
		}
	default:
		return nil
	}
	return bind(source, target, attributes)
}

func mountTmpfs(dir, options string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("cannot mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// touch makes an empty file as a mount point.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
