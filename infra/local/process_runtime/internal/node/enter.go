// Package node turns a process into a node: namespaces of its own, the CRI server and the kubelet in them.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"trainyard.dev/process-runtime/internal/container"
)

// InsideCommand is the hidden subcommand that runs a node from within its namespaces.
const InsideCommand = "inside"

// handedOn are the variables that a node's programs get of the environment. Above all not TRAINYARD_PROCESS, so that one
// node is one process to whoever looks for it; and no secret, which a container that sees the node's processes might read.
var handedOn = []string{"PATH", "HOME", "TMPDIR", "TZ", "LANG"}

// cloneFlags are the namespaces of a node: mounts of its own, because the kubelet's device plugin folder is hard-wired;
// and processes of its own, because then the kernel ends all of a node when its first process ends, however it ends.
// An ordinary user gets the right to make them from a user namespace.
func cloneFlags(userNamespace bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL, // this process may be killed too
	}
	if userNamespace {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// Enter runs this program again in a node's namespaces with the given arguments, passes signals on, and returns its
// exit code. It must be called from the locked main thread: the child dies with the thread that made it.
func Enter(arguments ...string) (int, error) {
	how, problem := Probe()
	if problem != nil {
		return 1, problem
	}
	cmd := exec.Command("/proc/self/exe", append([]string{InsideCommand}, arguments...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.Env = container.OwnEnvironment()
	for _, name := range handedOn {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = cloneFlags(how == UserNamespace)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("cannot enter the node's namespaces: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
