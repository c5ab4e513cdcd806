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

// visible are attributes of what a container sees of the computer: it can neither write to it, nor gain rights through
// its set-user-ID programs, nor reach its devices.
const visible = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// ownFolders are folders that each container has for itself, empty at first, instead of the computer's. root's home can
// be passed through: an image's paths, shown again below it, serve containers of any user.
var ownFolders = map[string]os.FileMode{
	"tmp": 0o1777, "run": 0o755, "var": 0o755, "var/tmp": 0o1777, "var/log": 0o755, "var/lib": 0o755, "var/cache": 0o755,
	"root": 0o755, "home": 0o755, "srv": 0o755, "mnt": 0o755, "media": 0o755, "boot": 0o755,
	"proc": 0o755, "sys": 0o755, "dev": 0o755,
}

// secretFiles of the computer are shown empty.
var secretFiles = []string{
	"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/security/opasswd",
	"/etc/krb5.keytab",
}

// secretFolders of the computer are shown empty.
var secretFolders = []string{
	"/etc/ssh", "/etc/ssl/private", "/etc/sudoers.d", "/etc/kubernetes", "/etc/rancher", "/etc/docker", "/etc/wireguard",
	"/etc/NetworkManager", "/etc/letsencrypt", "/lost+found",
}

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
	if err := bind(v.root, v.root, unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	for _, step := range []func() error{
		v.folders, v.hide, v.show, v.processes, v.devices, v.system, v.home, v.workingFolder, v.volumes, v.restrict,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return v.enter()
}

// folders lays out the top level: own folders, and the computer's others, read-only.
func (v *view) folders() error {
	names := make([]string, 0, len(ownFolders))
	for name := range ownFolders {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		path := filepath.Join(v.root, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		// The mode of Mkdir is subject to the umask and knows no sticky bit.
		if err := unix.Chmod(path, uint32(ownFolders[name])); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(v.root, "var/run")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, own := ownFolders[e.Name()]; own || !e.IsDir() && e.Type()&os.ModeSymlink == 0 {
			continue
		}
		err := copyEntry("/"+e.Name(), filepath.Join(v.root, e.Name()), e, visible)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// hide covers what containers may not see.
func (v *view) hide() error {
	for _, dir := range append(append([]string{}, v.spec.Hide...), secretFolders...) {
		path, found := v.find(dir)
		if !found {
			continue // not visible anyway
		}
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue
		}
		if err := mountTmpfs(path, "size=1m,mode=755"); err != nil {
			return err
		}
	}
	for _, file := range secretFiles {
		if path, found := v.find(file); found {
			if err := bind("/dev/null", path, unix.MOUNT_ATTR_RDONLY); err != nil {
				return err
			}
		}
	}
	return nil
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
	place, err := v.place(target, info.IsDir())
	if err != nil {
		return err
	}
	return bind(source, place, attributes)
}

// processes mounts /proc: the container's own processes, or the node's.
func (v *view) processes() error {
	target := filepath.Join(v.root, "proc")
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
	return bind("/sys", filepath.Join(v.root, "sys"), attributes)
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
		place, err := v.place(m.Target, info.IsDir())
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
