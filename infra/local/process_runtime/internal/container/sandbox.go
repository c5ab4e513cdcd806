package container

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewNamespaces makes the namespaces that a pod's containers share. Open files keep them alive, so no process has to.
func NewNamespaces(hostname string, uts, ipc bool) (Namespaces, error) {
	type result struct {
		ns  Namespaces
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread is now in other namespaces and ends with this goroutine.
		runtime.LockOSThread()
		ns, err := unshare(hostname, uts, ipc)
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

// Close lets go of the namespaces; they end with their last process.
func (n *Namespaces) Close() {
	closeAll([]*os.File{n.UTS, n.IPC, n.PID})
	*n = Namespaces{}
}
