package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ImageFiles is an image's root file system under a layer of the container's own, which takes all that is written. So
// the image serves any number of containers, and none of them sees what another one changed.
type ImageFiles struct {
	// Rootfs is the image's root file system. It is only read.
	Rootfs string
	// Layer is the folder of what the container changes.
	Layer string
}

// remedy of a link that leads nowhere.
func (*ImageFiles) remedy() string { return "which the image lacks" }

// lay mounts the two as an overlay.
func (f *ImageFiles) lay(v *view) error {
	err := f.overlay(v)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		// The disk cannot hold such a layer; above all where it is an overlay itself, as in most containers. In memory it
		// is as good, as long as not much is written.
		if tmpfs := mountTmpfs(f.Layer, "mode=700"); tmpfs != nil {
			return errors.Join(err, tmpfs)
		}
		err = f.overlay(v)
	}
	if err != nil {
		return fmt.Errorf("cannot lay the container's own files over its image's (an overlay file system; ordinary users may "+
			"have one since Linux 5.11): %w", err)
	}
	return nil
}

func (f *ImageFiles) overlay(v *view) error {
	upper, work := filepath.Join(f.Layer, "upper"), filepath.Join(f.Layer, "work")
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := likeRootOf(f.Rootfs, upper, v.spec.Identity.Nested); err != nil {
		return err
	}
	// Paths may hold what separates options; descriptors do not.
	var options []string
	if inUserNamespace() {
		options = append(options, "userxattr") // the layer's marks as an ordinary user may write them
	}
	for _, part := range []struct{ option, path string }{
		{"lowerdir", f.Rootfs}, {"upperdir", upper}, {"workdir", work},
	} {
		fd, err := unix.Open(part.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open %s: %w", part.path, err)
		}
		defer unix.Close(fd)
		options = append(options, fmt.Sprintf("%s=/proc/self/fd/%d", part.option, fd))
	}
	if err := unix.Mount("image", v.root, "overlay", unix.MS_NODEV, strings.Join(options, ",")); err != nil {
		return fmt.Errorf("cannot mount %s: %w", f.Rootfs, err)
	}
	// The kernel's own folder there has no rights at all, and an ordinary user could not remove it.
	return os.Chmod(filepath.Join(work, "work"), 0o700)
}

// inUserNamespace says whether user IDs here are not all the computer's own.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

// likeRootOf gives the layer's folder, which becomes "/", the mode and owner of the image's.
func likeRootOf(rootfs, upper string, nested bool) error {
	var info unix.Stat_t
	if err := unix.Stat(rootfs, &info); err != nil {
		return err
	}
	if !nested {
		if err := os.Chown(upper, int(info.Uid), int(info.Gid)); err != nil {
			return err
		}
	}
	return unix.Chmod(upper, info.Mode&0o7777)
}
