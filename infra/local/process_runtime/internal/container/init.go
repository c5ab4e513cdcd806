package container

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// initDeath is the exit code of an init whose runtime went away; the kernel ends its processes with it.
const initDeath = 137

// lone is the init of one container.
type lone struct {
	wire *wire
	spec *Spec
	// mu is held from before a process is made until it is known by its number, so that its end is never missed.
	mu        sync.Mutex
	processes map[int]int // process number -> request ID
	reap      *sync.Cond
	// forks are run by the first thread, the one that lost its rights: what it starts inherits that.
	forks chan func()
}

// Init is the whole life of an init. It must run on the process's first thread (see LockMainThread) with the runtime's
// socket as file 3, and returns the exit code.
func Init() int {
	unix.CloseOnExec(3)
	w, err := wireOf(os.NewFile(3, "runtime"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "container init:", err)
		return 2
	}
	// A second line beside the socket's end of file: the kernel's own signal when the runtime's thread is gone.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	// In a shared process namespace orphans would escape to its first process.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	c := &lone{wire: w, processes: map[int]int{}, forks: make(chan func())}
	c.reap = sync.NewCond(&c.mu)

	var first request
	files, err := w.receive(&first)
	if err != nil || first.Kind != "start" || first.Spec == nil {
		return initDeath
	}
	c.spec = first.Spec
	if err := c.prepare(); err != nil {
		_ = w.send(reply{Kind: "failed", Error: err.Error()})
		return 1
	}
	c.launch(0, &c.spec.Process, files)
	go c.reaper()
	go c.listen()
	for fork := range c.forks {
		fork()
	}
	return initDeath
}

// prepare makes the container around the calling thread, up to the point where a process can be started in it.
func (c *lone) prepare() error {
	for _, ns := range []struct{ file, kind int }{{c.spec.UTS, unix.CLONE_NEWUTS}, {c.spec.IPC, unix.CLONE_NEWIPC}} {
		if ns.file == 0 {
			continue
		}
		if err := unix.Setns(ns.file, ns.kind); err != nil {
			return fmt.Errorf("cannot enter the pod's namespaces: %w", err)
		}
		_ = unix.Close(ns.file)
	}
	unix.Umask(0)
	if err := buildView(c.spec); err != nil {
		return err
	}
	unix.Umask(0o022)
	// Only root may lower it; then the inherited value stays.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(fmt.Sprint(c.spec.OOMScoreAdj)), 0o644)
	return dropRights(c.spec)
}

// listen serves the runtime until it goes away.
func (c *lone) listen() {
	for {
		var r request
		files, err := c.wire.receive(&r)
		if err != nil {
			os.Exit(initDeath)
		}
		switch r.Kind {
		case "exec":
			c.forks <- func() { c.launch(r.ID, r.Process, files) }
		case "signal":
			c.signal(r.ID, syscall.Signal(r.Signal))
		}
	}
}

// launch starts a process and tells the runtime. It runs on the thread that lost its rights.
func (c *lone) launch(id int, p *Process, files []*os.File) {
	defer closeAll(files)
	if err := c.run(id, p, files); err != nil {
		_ = c.wire.send(reply{Kind: "failed", ID: id, Error: err.Error()})
		if id == 0 {
			os.Exit(1)
		}
	}
}

func (c *lone) run(id int, p *Process, streams []*os.File) error {
	attributes := c.attributes()
	var ours []*os.File // the runtime's side of a terminal
	if p.Terminal {
		master, slave, err := newTerminal(p.Width, p.Height)
		if err != nil {
			return err
		}
		defer master.Close()
		defer slave.Close()
		if !c.spec.Identity.Nested {
			_ = slave.Chown(int(c.spec.Identity.UID), int(c.spec.Identity.GID))
		}
		ours, streams = []*os.File{master}, []*os.File{slave, slave, slave}
		attributes.Setctty, attributes.Ctty = true, 0
	}
	if len(streams) != 3 {
		return errors.New("a process needs three streams")
	}
	program, err := lookPath(p.Args[0], p.Env, p.Dir, c.spec.origin().remedy())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(program, p.Args, &syscall.ProcAttr{
		Dir: p.Dir, Env: p.Env, Sys: attributes,
		Files: []uintptr{streams[0].Fd(), streams[1].Fd(), streams[2].Fd()},
	})
	if err != nil {
		return fmt.Errorf("exec: %q: %w", program, err)
	}
	c.processes[pid] = id
	c.reap.Signal()
	// Still under the lock: the reaper must not tell of the end of a process before its start was told. Where this cannot
	// be sent, the runtime is gone, and listen ends the init.
	_ = c.wire.send(reply{Kind: "started", ID: id, PID: pid}, ours...)
	return nil
}

// attributes of a process: its own session, its user.
func (c *lone) attributes() *syscall.SysProcAttr {
	id := c.spec.Identity
	a := &syscall.SysProcAttr{Setsid: true}
	if os.Getpid() != 1 {
		a.Pdeathsig = syscall.SIGKILL // in a shared process namespace the init's end alone would end nothing
	}
	if id.Nested {
		// One user ID of the computer, shown as the wanted one.
		if id.UID != 0 || id.GID != 0 {
			a.Cloneflags = syscall.CLONE_NEWUSER
			a.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(id.UID), HostID: 0, Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(id.GID), HostID: 0, Size: 1}}
		}
		return a
	}
	a.Credential = &syscall.Credential{Uid: id.UID, Gid: id.GID, Groups: id.Groups}
	return a
}

// reaper collects ended processes, the container's orphans among them, and reports those that were asked for.
func (c *lone) reaper() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		c.mu.Lock()
		if err != nil { // no child at all: wait for the next one to be made
			if len(c.processes) == 0 {
				c.reap.Wait()
			}
			c.mu.Unlock()
			continue
		}
		id, known := c.processes[pid]
		delete(c.processes, pid)
		c.mu.Unlock()
		if !known {
			continue
		}
		answer := reply{Kind: "exited", ID: id, Code: status.ExitStatus()}
		if status.Signaled() {
			answer.Signal = int(status.Signal())
			answer.Code = 128 + answer.Signal
		}
		if id == 0 {
			c.killRest()
		}
		_ = c.wire.send(answer)
		if id == 0 {
			os.Exit(0)
		}
	}
}

// killRest ends what the main process left behind. In a process namespace of its own the init's end does that.
func (c *lone) killRest() {
	if os.Getpid() == 1 {
		return
	}
	for range 100 { // each round makes orphans of the next generation
		children := childrenOf(os.Getpid())
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
		if len(children) == 0 {
			return
		}
	}
}

// signal sends a signal to a process that the runtime asked for, with what runs in its session's first group.
func (c *lone) signal(id int, s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid, known := range c.processes {
		if known == id {
			_ = syscall.Kill(pid, s)
			if s == syscall.SIGKILL {
				_ = syscall.Kill(-pid, s)
			}
		}
	}
}

// LockMainThread must be called from an init function of the program: only there the first thread can be kept for the
// main goroutine. Rights are a matter of threads in Linux, and the first one lives as long as the process.
func LockMainThread() { runtime.LockOSThread() }
