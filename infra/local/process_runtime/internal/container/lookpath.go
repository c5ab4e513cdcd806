package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lookPath finds a program as execvp(3) does, with the container's PATH and inside its files. remedy is what to do about a
// link to a file that is not among them.
func lookPath(name string, env []string, dir, remedy string) (string, error) {
	if name == "" {
		return "", errors.New("the container has no command, and its image no entrypoint")
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join("/", dir, name)
		}
		return name, runnable(name, remedy)
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, variable := range env {
		if value, found := strings.CutPrefix(variable, "PATH="); found {
			path = value
		}
	}
	var worst error
	for _, folder := range filepath.SplitList(path) {
		candidate := filepath.Join("/", folder, name)
		err := runnable(candidate, remedy)
		if err == nil {
			return candidate, nil
		}
		if danglingLink(candidate) != "" {
			worst = err
		}
	}
	if worst != nil {
		return "", worst
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH (%s): no such file or directory", name, path)
}

func runnable(path, remedy string) error {
	info, err := os.Stat(path)
	if err != nil {
		if link := danglingLink(path); link != "" {
			return fmt.Errorf("%s leads to %s, %s", path, link, remedy)
		}
		return fmt.Errorf("exec: %q: stat: %w", path, unix.ENOENT)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("exec: %q: %w", path, unix.EACCES)
	}
	return nil
}

// danglingLink gives where a link without a file behind it leads to. It is the usual sign of a virtual environment whose
// base interpreter lies in a hidden folder.
func danglingLink(path string) string {
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			return ""
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if _, err := os.Lstat(to); err != nil {
			return to
		}
		path = to
	}
	return ""
}
