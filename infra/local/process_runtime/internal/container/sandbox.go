package container

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewNamespaces makes the namespaces that a pod's containers share. Open files keep them alive, so no process has to.
// sysctls are kernel settings that belong to the pod's IPC namespace.
func NewNamespaces(hostname string, uts, ipc bool, sysctls map[string]string) (Namespaces, error) {
	type result struct {
		ns  Namespaces
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread is now in other namespaces and ends with this goroutine.
		runtime.LockOSThread()
		ns, err := unshare(hostname, uts, ipc)
		if err == nil {
			if err = writeSysctls(sysctls); err != nil {
				ns.Close()
			}
		}
		done <- result{ns, err}
	}()
	r := <-done
	return r.ns, r.err
}

func unshare(hostname string, uts, ipc bool) (ns Namespaces, err error) {
	defer func() {
		if err != nil {
			ns.Close()
		}
	}()
	if uts {
		if err = unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return ns, fmt.Errorf("no namespace for the pod's host name: %w", err)
		}
		if err = unix.Sethostname([]byte(hostname)); err != nil {
			return ns, fmt.Errorf("cannot set the pod's host name %q: %w", hostname, err)
		}
		if ns.UTS, err = os.Open("/proc/thread-self/ns/uts"); err != nil {
			return ns, err
		}
	}
	if ipc {
		if err = unix.Unshare(unix.CLONE_NEWIPC); err != nil {
			return ns, fmt.Errorf("no namespace for the pod's shared memory: %w", err)
		}
		if ns.IPC, err = os.Open("/proc/thread-self/ns/ipc"); err != nil {
			return ns, err
		}
	}
	return ns, nil
}

// CheckSysctl says why a pod cannot have a kernel setting, if it cannot.
func CheckSysctl(name string, ownIPC bool) error {
	for _, prefix := range []string{"kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."} {
		if strings.HasPrefix(name, prefix) {
			if !ownIPC {
				return fmt.Errorf("the sysctl %s cannot be set in a pod that shares the computer's IPC", name)
			}
			return nil
		}
	}
	return fmt.Errorf("the sysctl %s cannot be set: pods of the process runtime share the computer's kernel settings and "+
		"network; only those of IPC (kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*) are a pod's own", name)
}

// writeSysctls runs on a thread that is in the pod's namespaces: /proc/sys shows those of the thread.
func writeSysctls(sysctls map[string]string) error {
	for name, value := range sysctls {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("cannot set the sysctl %s: %w", name, err)
		}
	}
	return nil
}

// PauseCommand is the hidden subcommand that runs Pause.
const PauseCommand = "pause"

// Pause is the first process of a process namespace that a pod's containers share. It only collects orphans.
func Pause() int {
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	// A pipe from the runtime: its end of file is the runtime's end.
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
	return 0
}

// Pauser is a running Pause.
type Pauser struct {
	// Namespace is the process namespace that it holds.
	Namespace *os.File
	cmd       *exec.Cmd
	alive     *os.File
}

// StartPause makes a process namespace for a pod.
func StartPause() (*Pauser, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe", PauseCommand)
	cmd.Args[0] = "process-runtime"
	cmd.Env = OwnEnvironment("GOMAXPROCS=1")
	cmd.Dir = "/"
	cmd.Stdin = theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWPID}
	if err := spawn(cmd, nil); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("cannot make the pod's process namespace: %w", err)
	}
	p := &Pauser{cmd: cmd, alive: ours}
	if p.Namespace, err = ProcessNamespace(cmd.Process.Pid); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// Stop ends the namespace and all processes in it.
func (p *Pauser) Stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	closeAll([]*os.File{p.Namespace, p.alive})
}

// ProcessNamespace opens the process namespace of a process.
func ProcessNamespace(pid int) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
}

// Close lets go of the namespaces; they end with their last process.
func (n *Namespaces) Close() {
	closeAll([]*os.File{n.UTS, n.IPC, n.PID})
	*n = Namespaces{}
}
