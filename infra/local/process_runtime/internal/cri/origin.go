package cri

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/images"
)

// origin is where the files of an image's containers come from, and so their users. It has two kinds, as in package
// container, which says what they mean for files.
type origin interface {
	// check says what is wrong with the files before anything is made of them.
	check() error
	// open opens one of the user databases, /etc/passwd or /etc/group.
	open(path string) (io.ReadCloser, error)
	// home of an account with an entry in /etc/passwd.
	home(a account) string
	// stranger is the account of a number without an entry.
	stranger(uid uint32) account
	// memberships are further groups of a user, by the name.
	memberships(user string) []uint32
	// place names where a missing user was looked for.
	place() string
	// standIns are files that containers see in place of the origin's, by their paths.
	standIns(id identity) map[string][]byte
	// hand gives a container, whose own files lie in a folder, its origin.
	hand(spec *container.Spec, id identity, folder string)
}

func (s *Server) originOf(image *images.Image) origin {
	if image.Rootfs != "" {
		return imageFiles{image.Rootfs}
	}
	return computer{s.config.Hidden()}
}

// computer is the origin of images that stand for programs of this computer.
type computer struct{ hidden []string }

func (computer) check() error { return nil }

func (computer) open(path string) (io.ReadCloser, error) { return os.Open(path) }

// home folders of the computer stay hidden; the container gets one of its own.
func (computer) home(a account) string {
	if a.uid == 0 {
		return "/root"
	}
	return "/home/" + a.name
}

// stranger has the name that users have in distroless images, whose user this project's images have.
func (computer) stranger(uid uint32) account {
	if uid == 0 {
		return account{name: "root", home: "/root"}
	}
	return account{name: "nonroot", home: "/home/nonroot", uid: uid}
}

// memberships of the computer's own /etc/group are not the image's, so none are merged in.
func (computer) memberships(string) []uint32 { return nil }

func (computer) place() string { return "on this computer" }

func (computer) standIns(id identity) map[string][]byte {
	return map[string][]byte{"/etc/passwd": id.passwd(), "/etc/group": id.group()}
}

func (c computer) hand(spec *container.Spec, id identity, _ string) {
	spec.Hide, spec.Home = c.hidden, id.home
}

// imageFiles is the origin of images that were loaded with their content.
type imageFiles struct{ rootfs string }

func (f imageFiles) check() error {
	const again = "load it again: trainyard images load ARCHIVE"
	if !filepath.IsAbs(f.rootfs) {
		return fmt.Errorf(`"rootfs" of the image must be an absolute path, not %q`, f.rootfs)
	}
	entries, err := os.ReadDir(f.rootfs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("the image's root file system %s is gone; %s", f.rootfs, again)
	case err != nil:
		return fmt.Errorf("the image's root file system cannot be read (%w); %s", err, again)
	case len(entries) == 0:
		return fmt.Errorf("the image's root file system %s is empty; %s", f.rootfs, again)
	}
	return nil
}

// open follows links as a process in the container would, whose root is the image's.
func (f imageFiles) open(path string) (io.ReadCloser, error) {
	root, err := unix.Open(f.rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (imageFiles) home(a account) string {
	if a.home == "" {
		return "/"
	}
	return a.home
}

func (imageFiles) stranger(uid uint32) account { return account{home: "/", uid: uid} }

func (f imageFiles) memberships(user string) []uint32 {
	var groups []uint32
	for fields := range linesOf(f, "/etc/group", 4) {
		number, err := strconv.ParseUint(fields[2], 10, 32)
		if err == nil && user != "" && slices.Contains(strings.Split(fields[3], ","), user) {
			groups = append(groups, uint32(number))
		}
	}
	return groups
}

func (imageFiles) place() string { return "in the image" }

func (imageFiles) standIns(identity) map[string][]byte { return nil }

func (f imageFiles) hand(spec *container.Spec, _ identity, folder string) {
	spec.Image = &container.ImageFiles{Rootfs: f.rootfs, Layer: filepath.Join(folder, "layer")}
}
