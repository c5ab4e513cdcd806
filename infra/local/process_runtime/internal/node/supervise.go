package node

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"trainyard.dev/process-runtime/internal/config"
	"trainyard.dev/process-runtime/internal/seccomp"
)

// ServerCommand is the hidden subcommand that runs the CRI server from within a node's namespaces.
const ServerCommand = "server"

const (
	// firstPause and longestPause bound the wait before something that died is started again.
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
	// steady is how long something must have run for the pause to begin anew.
	steady = 30 * time.Second
	// kubeletGrace and serverGrace are how long the two get to end by themselves.
	kubeletGrace = 5 * time.Second
	serverGrace  = 8 * time.Second
	// socketWait is how long the server may take until it listens.
	socketWait = 20 * time.Second
)

// child is a supervised program.
type child struct {
	name  string
	start func() (int, error)
	ready func() bool // whether it may be started now

	pid      int // 0: not running
	began    time.Time
	pause    time.Duration
	startAt  time.Time
	stopping bool
}

// Supervise is the first process of a node: it starts the CRI server and, if withKubelet, the kubelet, starts again what
// dies, as systemd would, and ends both on SIGTERM. When it returns, the kernel ends what may be left.
func Supervise(c *config.Config, configPath string, withKubelet bool) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)
	held, err := lock(c.Dir)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := separate(); err != nil {
		return err
	}
	if err := privateFolders(kubeletFolders); err != nil {
		return err
	}
	server := &child{name: "CRI server", ready: func() bool { return true }, start: func() (int, error) {
		return start("/proc/self/exe", []string{os.Args[0], ServerCommand, "--config", configPath}, os.Stderr, false)
	}}
	children := []*child{server}
	if withKubelet && len(c.Kubelet) > 0 {
		children = append(children, &child{
			name: "kubelet", ready: func() bool { return server.pid != 0 && answers(c.Socket) },
			start: func() (int, error) { return startKubelet(c) },
		})
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := false
		for _, k := range children {
			k.tend()
			waiting = waiting || k.pid == 0
		}
		if waiting {
			tick.Reset(50 * time.Millisecond)
		} else {
			tick.Stop() // nothing to do until something ends
		}
		select {
		case <-ended:
			reap(children)
		case <-tick.C:
		case <-stop:
			return shutDown(children, ended)
		}
	}
}

// tend starts the child if it is time to.
func (k *child) tend() {
	if k.pid != 0 || time.Now().Before(k.startAt) || !k.ready() {
		return
	}
	pid, err := k.start()
	if err != nil {
		log.Printf("cannot start the %s: %v", k.name, err)
		k.backOff()
		return
	}
	k.pid, k.began = pid, time.Now()
}

func (k *child) backOff() {
	if time.Since(k.began) > steady || k.pause == 0 {
		k.pause = firstPause
	} else {
		k.pause = min(2*k.pause, longestPause)
	}
	k.startAt = time.Now().Add(k.pause)
}

// reap collects all that has ended; as the node's first process it inherits every orphan.
func reap(children []*child) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, k := range children {
			if k.pid != pid {
				continue
			}
			k.pid = 0
			k.backOff()
			if k.stopping {
				continue
			}
			log.Printf("the %s ended (%s); starting it again in %s", k.name, describe(status), k.pause)
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// shutDown ends the kubelet first, so that it does not see its containers end and start them again.
func shutDown(children []*child, ended <-chan os.Signal) error {
	for i := len(children) - 1; i >= 0; i-- {
		k := children[i]
		if k.pid == 0 {
			continue
		}
		k.stopping = true
		grace := kubeletGrace
		if i == 0 {
			grace = serverGrace
		}
		_ = syscall.Kill(k.pid, syscall.SIGTERM)
		limit := time.After(grace)
		for k.pid != 0 {
			select {
			case <-ended:
				reap(children)
			case <-limit:
				_ = syscall.Kill(k.pid, syscall.SIGKILL)
			}
		}
	}
	return nil
}

// answers says whether somebody listens on a Unix socket.
func answers(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// kubeletLogLimit is the size at which the kubelet's log is set aside when the kubelet is started.
const kubeletLogLimit = 10 << 20

func startKubelet(c *config.Config) (int, error) {
	path := filepath.Join(c.Dir, "kubelet.log")
	if info, err := os.Stat(path); err == nil && info.Size() > kubeletLogLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return 0, err
		}
	}
	output, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("cannot open the kubelet's log: %w", err)
	}
	defer output.Close()
	return start(c.Kubelet[0], c.Kubelet, output, singleUser())
}

// singleUser says whether this process lives in a user namespace with one user ID.
func singleUser() bool {
	var inside, outside, count int
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	n, _ := fmt.Sscan(string(text), &inside, &outside, &count)
	return n == 3 && count == 1
}

// start runs a program with its output in a file; ignoreChown puts it under a filter for which changing a file's owner
// is nothing (see seccomp.IgnoreChown).
func start(program string, arguments []string, output *os.File, ignoreChown bool) (int, error) {
	type result struct {
		pid int
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread may be under the filter, and ends with this goroutine.
		runtime.LockOSThread()
		if ignoreChown {
			if err := seccomp.Load(seccomp.IgnoreChown()); err != nil {
				done <- result{0, err}
				return
			}
		}
		null, err := os.Open(os.DevNull)
		if err != nil {
			done <- result{0, err}
			return
		}
		defer null.Close()
		pid, err := syscall.ForkExec(program, arguments, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
			Sys: &syscall.SysProcAttr{Setpgid: true},
		})
		done <- result{pid, err}
	}()
	r := <-done
	return r.pid, r.err
}
