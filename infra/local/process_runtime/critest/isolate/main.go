// Isolate runs a program where the suite can do no harm and find no port taken: in mount and network namespaces of its
// own, as their root. An ordinary user gets them in a user namespace, as the process runtime does.
//
//	isolate PROGRAM [ARGUMENT...]
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside marks the second start of this program, in the namespaces.
const inside = "--inside"

func init() { runtime.LockOSThread() } // the death signal of children is bound to the thread

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "isolate:", err)
	}
	os.Exit(code)
}

func run(arguments []string) (int, error) {
	if len(arguments) > 1 && arguments[0] == inside {
		if err := prepare(); err != nil {
			return 1, err
		}
		return start(arguments[1:], &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL})
	}
	attributes := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		attributes.Cloneflags |= unix.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return start(append([]string{"/proc/self/exe", inside}, arguments...), attributes)
}

func start(command []string, attributes *syscall.SysProcAttr) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attributes
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// prepare makes mounts propagate (as systemd does on a whole computer, which specs about propagation count on), shows
// the namespace's processes and brings up the loopback network.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback)
}
