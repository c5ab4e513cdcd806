package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// view builds the root of a container below the folder root.
type view struct {
	root string
	spec *Spec
}

// buildView makes the container's files below spec.Root and moves there. It runs in the container's mount namespace.
func buildView(spec *Spec) error {
	v := &view{root: spec.Root, spec: spec}
	// Nothing that is mounted here may reach the computer; what the computer mounts later may still appear in volumes.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	if err := spec.origin().lay(v); err != nil {
		return err
	}
	for _, step := range []func() error{
		v.show, v.processes, v.devices, v.system, v.home, v.workingFolder, v.volumes, v.restrict,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return v.enter()
}

// show makes the image's paths visible again, the outer ones first.
func (v *view) show() error {
	paths := slices.Clone(v.spec.Show)
	sort.Strings(paths)
	for _, path := range paths {
		if err := v.mount(path, path, visible); err != nil {
			return fmt.Errorf("a path that the image needs: %w", err)
		}
	}
	return nil
}

// mount shows source at target, which is made if needed.
func (v *view) mount(source, target string, attributes uint64) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	place, err := v.mountPoint(target, info.IsDir())
	if err != nil {
		return err
	}
	return bind(source, place, attributes)
}

// processes mounts /proc: the container's own processes, or the node's.
func (v *view) processes() error {
	target, err := v.mountPoint("/proc", true)
	if err != nil {
		return err
	}
	if v.spec.HostProcesses {
		return bind("/proc", target, 0)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("proc", target, "proc", flags, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	return nil
}

// system shows /sys, read-only: a fresh one would need a network namespace of its own.
func (v *view) system() error {
	attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC)
	if !v.spec.Privileged {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	target, err := v.mountPoint("/sys", true)
	if err != nil {
		return err
	}
	return bind("/sys", target, attributes)
}

// home makes the home folder of the container's user, on the container's own disk space.
func (v *view) home() error {
	if v.spec.Home == "" || v.spec.Home == "/" {
		return nil
	}
	path, err := v.place(v.spec.Home, true)
	if err != nil {
		return err
	}
	if err := unix.Chmod(path, 0o700); err != nil {
		return err
	}
	if id := v.spec.Identity; !id.Nested {
		return os.Chown(path, int(id.UID), int(id.GID))
	}
	return nil
}

// workingFolder makes the folder in which the container starts, as other runtimes do, unless a volume brings it.
func (v *view) workingFolder() error {
	dir := v.spec.Process.Dir
	if dir == "" || dir == "/" {
		return nil
	}
	for _, m := range v.spec.Mounts {
		if within(dir, m.Target) {
			return nil
		}
	}
	_, err := v.place(dir, true)
	return err
}

// within says whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// volumes mounts the container's volumes, outer ones first. No device files in them: with the default capabilities root
// may make some, and without a device cgroup nothing else keeps it from opening the computer's disks through them.
func (v *view) volumes() error {
	mounts := slices.Clone(v.spec.Mounts)
	depth := func(m Mount) int { return strings.Count(filepath.Clean(m.Target), "/") }
	sort.SliceStable(mounts, func(i, j int) bool { return depth(mounts[i]) < depth(mounts[j]) })
	for _, m := range mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return fmt.Errorf("a volume for %s: %w", m.Target, err)
		}
		place, err := v.mountPoint(m.Target, info.IsDir())
		if err != nil {
			return fmt.Errorf("no mount point %s: %w", m.Target, err)
		}
		attributes := uint64(unix.MOUNT_ATTR_NODEV)
		if v.spec.Privileged {
			attributes = 0
		}
		if err := bind(m.Source, place, attributes); err != nil {
			return err
		}
		if m.Readonly || m.RecursiveReadonly {
			if err := setAttributes(place, unix.MOUNT_ATTR_RDONLY, m.RecursiveReadonly); err != nil {
				return err
			}
		}
		if err := unix.Mount("", place, "", m.Propagation|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("cannot set the propagation of %s: %w", m.Target, err)
		}
	}
	return nil
}

// place gives the path below the new root where target is to be mounted. Links are followed as the container would;
// missing folders are made; a folder of the computer that lacks one is split, so that the computer's disk stays as it is.
func (v *view) place(target string, isDir bool) (string, error) {
	return v.resolve(target, func(parent, name string, last bool) error {
		return v.create(parent, name, isDir || !last)
	})
}

// mountPoint is place for what covers it. That cannot be the root: all that comes later would lie below the cover.
func (v *view) mountPoint(target string, isDir bool) (string, error) {
	path, err := v.place(target, isDir)
	if err == nil && path == v.root {
		return "", fmt.Errorf("%s leads to the root of the container's files, over which nothing can be mounted", target)
	}
	return path, err
}

// find gives the path below the new root that target leads to, if there is one.
func (v *view) find(target string) (string, bool) {
	path, err := v.resolve(target, func(string, string, bool) error { return os.ErrNotExist })
	return path, err == nil
}

// resolve walks to target below the new root and follows links there; absent is called for each missing part.
func (v *view) resolve(target string, absent func(parent, name string, last bool) error) (string, error) {
	rest := strings.Split(strings.Trim(filepath.Clean("/"+target), "/"), "/")
	current := v.root
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if current != v.root {
				current = filepath.Dir(current)
			}
			continue
		}
		next := filepath.Join(current, name)
		info, err := os.Lstat(next)
		switch {
		case err == nil && info.Mode()&os.ModeSymlink != 0:
			if links++; links > 40 {
				return "", fmt.Errorf("too many links in %s", target)
			}
			to, err := os.Readlink(next)
			if err != nil {
				return "", err
			}
			if filepath.IsAbs(to) {
				current = v.root
			}
			rest = append(strings.Split(strings.Trim(to, "/"), "/"), rest...)
			continue
		case errors.Is(err, os.ErrNotExist):
			if err := absent(current, name, len(rest) == 0); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		}
		current = next
	}
	return current, nil
}

// create makes a mount point in a folder of the new root.
func (v *view) create(parent, name string, isDir bool) error {
	create := func() error {
		if isDir {
			return os.Mkdir(filepath.Join(parent, name), 0o755)
		}
		return touch(filepath.Join(parent, name))
	}
	err := create()
	if err == nil || !errors.Is(err, unix.EROFS) {
		return err
	}
	if err := Split(parent, visible); err != nil {
		return err
	}
	return create()
}

// restrict applies masked and read-only paths, and the read-only root.
func (v *view) restrict() error {
	for _, path := range v.spec.Readonly {
		target, found := v.find(path)
		if !found {
			continue
		}
		if err := bind(target, target, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	for _, path := range v.spec.Masked {
		target, found := v.find(path)
		if !found {
			continue
		}
		info, err := os.Lstat(target)
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = unix.Mount("tmpfs", target, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "size=0k")
		} else {
			err = unix.Mount("/dev/null", target, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("cannot mask %s: %w", path, err)
		}
	}
	if v.spec.ReadonlyRoot {
		return setAttributes(v.root, unix.MOUNT_ATTR_RDONLY, false)
	}
	return nil
}

// enter makes the new root the root and lets go of the computer's.
func (v *view) enter() error {
	if err := unix.Chdir(v.root); err != nil {
		return err
	}
	// Both roots at one place: the old one ends up on top and is unmounted at once (pivot_root(2), "NOTES").
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot leave the old root: %w", err)
	}
	return unix.Chdir("/")
}
