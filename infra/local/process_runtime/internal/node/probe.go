package node

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"trainyard.dev/process-runtime/internal/container"
)

// How a node gets the right to make namespaces.
type How string

const (
	// Root: the process has the right itself.
	Root How = "root"
	// UserNamespace: an ordinary user, in a user namespace.
	UserNamespace How = "user namespace"
	// Neither: it cannot be done on this computer.
	Neither How = "neither"
)

// ProbeCommand is the hidden subcommand that tries out namespaces.
const ProbeCommand = "probe"

// Probe finds out how a node can be made here, by doing it for a moment. Where it cannot, the error says why and what
// to do instead.
func Probe() (How, error) {
	var problems []string
	ways := []How{UserNamespace}
	if os.Geteuid() == 0 {
		ways = []How{Root, UserNamespace}
	}
	for _, way := range ways {
		cmd := exec.Command("/proc/self/exe", ProbeCommand)
		cmd.Env = container.OwnEnvironment()
		cmd.SysProcAttr = cloneFlags(way == UserNamespace)
		output, err := cmd.CombinedOutput()
		if err == nil {
			return way, nil
		}
		problem := strings.TrimSpace(string(output))
		if problem == "" {
			problem = err.Error()
		}
		problems = append(problems, fmt.Sprintf("as %s: %s", way, problem))
	}
	return Neither, fmt.Errorf("this computer does not let processes have namespaces of their own (%s)%s. Allow it, or use "+
		"another cluster: point the stack at a kubeconfig of kind, k3d or any cluster (target: kubeconfig)",
		strings.Join(problems, "; "), restriction())
}

// restriction names a known setting that forbids user namespaces.
func restriction() string {
	for _, r := range []struct{ file, value, text string }{
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
			"; AppArmor restricts user namespaces of ordinary users here (Ubuntu 23.10 and later: " +
				"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 lifts it until the next start)"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0",
			"; user namespaces of ordinary users are switched off (sudo sysctl kernel.unprivileged_userns_clone=1)"},
		{"/proc/sys/user/max_user_namespaces", "0",
			"; user namespaces are switched off (sudo sysctl user.max_user_namespaces=10000)"},
	} {
		if text, err := os.ReadFile(r.file); err == nil && strings.TrimSpace(string(text)) == r.value {
			return r.text
		}
	}
	if _, err := os.Stat("/.dockerenv"); err == nil {
		return "; this seems to be a container, whose own runtime may forbid it"
	}
	return ""
}

// TryNamespaces does, inside new namespaces, what a node and its containers will need.
func TryNamespaces() error {
	if err := separate(); err != nil {
		return err
	}
	dir := os.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	pts := dir + "/pts"
	if err := os.Mkdir(pts, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", pts, "devpts", 0, "newinstance,ptmxmode=0666"); err != nil {
		return fmt.Errorf("cannot mount terminals: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("cannot make namespaces: %w", err)
	}
	return nil
}
