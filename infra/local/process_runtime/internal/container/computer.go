package container

import (
	"errors"
	"os"
	"path/filepath"
	"sort"

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

// computer is the origin of containers that run the computer's own programs.
type computer struct{ hide []string }

// remedy of a link that leads nowhere.
func (computer) remedy() string {
	return "which the container does not see: add that folder to the image's \"mounts\""
}

// lay shows the computer's folders, and empty ones of the container's own where it may write.
func (c computer) lay(v *view) error {
	if err := bind(v.root, v.root, unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	if err := c.folders(v); err != nil {
		return err
	}
	return c.cover(v)
}

// folders lays out the top level: own folders, and the computer's others, read-only.
func (c computer) folders(v *view) error {
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

// cover hides what containers may not see.
func (c computer) cover(v *view) error {
	for _, dir := range append(append([]string{}, c.hide...), secretFolders...) {
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
