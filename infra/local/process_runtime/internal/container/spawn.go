package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// InitCommand is the hidden subcommand that runs Init.
const InitCommand = "container-init"

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, 128 + the signal for a process that a signal ended.
	Code   int
	Signal int
	// Reported is false where the init itself was ended, so that nobody saw the process's own end.
	Reported bool
}

// Started is a running process of a container.
type Started struct {
	// PID in the container's process namespace.
	PID int
	// Terminal is the runtime's side of its terminal, if it has one. The receiver closes it.
	Terminal *os.File
	// Done is closed when Exit is known.
	Done chan struct{}
	Exit Exit

	id     int
	parent *Running
}

// Running is a container: its init, and the processes that were asked for.
type Running struct {
	// InitPID is the init's number in the runtime's process namespace.
	InitPID int
	Main    *Started

	shared  bool // its process namespace is not its own
	wire    *wire
	mu      sync.Mutex
	next    int
	waiting map[int]chan answer
	started map[int]*Started
	gone    chan struct{}
}

type answer struct {
	reply
	started *Started
}

// Namespaces of a pod that its containers share, as open files. PID is nil unless the pod shares its processes.
type Namespaces struct{ UTS, IPC, PID *os.File }

// Start makes a container and starts its main process with the given streams (none of them with a terminal). The
// streams stay the caller's.
func Start(spec Spec, ns Namespaces, streams []*os.File) (*Running, error) {
	ours, theirs, err := newWirePair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", InitCommand)
	cmd.Args[0] = "process-runtime"
	cmd.Env = OwnEnvironment("GOMAXPROCS=2")
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr // a crash of the init itself
	cmd.ExtraFiles = []*os.File{theirs}
	for _, n := range []struct {
		file *os.File
		at   *int
	}{{ns.UTS, &spec.UTS}, {ns.IPC, &spec.IPC}} {
		if n.file != nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, n.file)
			*n.at = 2 + len(cmd.ExtraFiles)
		}
	}
	// Set by Go, the death signal would come at once in a shared process namespace, where the parent's number is always
	// 0; there the init asks for it itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	if ns.PID == nil && !spec.HostProcesses {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	err = spawn(cmd, ns.PID)
	_ = theirs.Close() // a copy held here would hide the end of the init
	if err != nil {
		_ = ours.socket.Close()
		return nil, fmt.Errorf("cannot start a container's init: %w", err)
	}
	c := &Running{
		InitPID: cmd.Process.Pid, shared: ns.PID != nil || spec.HostProcesses, wire: ours, gone: make(chan struct{}),
		waiting: map[int]chan answer{0: make(chan answer, 1)}, started: map[int]*Started{}, next: 1,
	}
	go func() {
		c.listen()
		_ = cmd.Wait()
		close(c.gone)
	}()
	c.Main, err = c.ask(0, request{Kind: "start", Spec: &spec}, streams)
	if err != nil {
		_ = cmd.Process.Kill()
		<-c.gone
		return nil, err
	}
	return c, nil
}

// Exec starts a further process in the container, with three streams or a terminal.
func (c *Running) Exec(p Process, streams []*os.File) (*Started, error) {
	c.mu.Lock()
	id := c.next
	c.next++
	if c.waiting == nil {
		c.mu.Unlock()
		return nil, errors.New("the container has ended")
	}
	c.waiting[id] = make(chan answer, 1)
	c.mu.Unlock()
	return c.ask(id, request{Kind: "exec", ID: id, Process: &p}, streams)
}

// Signal sends a signal to one process; SIGKILL goes to its whole group.
func (p *Started) Signal(s syscall.Signal) error {
	return p.parent.wire.send(request{Kind: "signal", ID: p.id, Signal: int(s)})
}

// sharedKillGrace is how long an init gets to end the processes below it.
const sharedKillGrace = 2 * time.Second

// Kill ends the container: its init, and with it all processes. In a shared process namespace the init has to do it,
// process by process; it does so when the main process ends.
func (c *Running) Kill() {
	if c.shared && c.Main.Signal(syscall.SIGKILL) == nil {
		select {
		case <-c.gone:
			return
		case <-time.After(sharedKillGrace):
		}
	}
	_ = syscall.Kill(c.InitPID, syscall.SIGKILL)
}

// Gone is closed when the init has ended, and so all of the container.
func (c *Running) Gone() <-chan struct{} { return c.gone }

func (c *Running) ask(id int, r request, streams []*os.File) (*Started, error) {
	c.mu.Lock()
	reply := c.waiting[id]
	c.mu.Unlock()
	if err := c.wire.send(r, streams...); err != nil {
		return nil, fmt.Errorf("the container's init has ended: %w", err)
	}
	a, alive := <-reply
	if !alive {
		return nil, errors.New("the container ended before the process started")
	}
	if a.Kind == "failed" {
		return nil, errors.New(a.Error)
	}
	return a.started, nil // its end may be known already
}

// listen takes the init's messages until it has ended, then settles what is still open.
func (c *Running) listen() {
	for {
		var r reply
		files, err := c.wire.receive(&r)
		if err != nil {
			break
		}
		c.mu.Lock()
		switch r.Kind {
		case "started", "failed":
			a := answer{reply: r}
			if r.Kind == "started" {
				a.started = &Started{PID: r.PID, id: r.ID, parent: c, Done: make(chan struct{})}
				if len(files) > 0 {
					a.started.Terminal = interruptible(files[0])
				}
				c.started[r.ID] = a.started
			}
			c.waiting[r.ID] <- a
			delete(c.waiting, r.ID)
		case "exited":
			if p := c.started[r.ID]; p != nil {
				p.Exit = Exit{Code: r.Code, Signal: r.Signal, Reported: true}
				close(p.Done)
				delete(c.started, r.ID)
			}
		}
		c.mu.Unlock()
	}
	_ = c.wire.socket.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiting := range c.waiting {
		close(waiting)
	}
	c.waiting = nil
	for _, p := range c.started {
		p.Exit = Exit{Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL)}
		close(p.Done)
	}
	c.started = nil
}

// interruptible gives a file in whose place reads end when it is closed, as Go does it for files that never block.
func interruptible(f *os.File) *os.File {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil
	}
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "terminal")
}

// spawner starts commands from one thread that lives as long as the runtime: the death signal of the commands is bound
// to the thread that started them, and Go ends threads as it likes.
var spawner = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// spawn starts a command; with pid, in that process namespace.
func spawn(cmd *exec.Cmd, pid *os.File) error {
	done := make(chan error)
	spawner() <- func() { done <- startIn(cmd, pid) }
	return <-done
}

// startIn starts a command from the calling thread. setns with a process namespace changes where the thread's children
// are made, never the thread itself, and is taken back afterwards.
func startIn(cmd *exec.Cmd, pid *os.File) error {
	if pid == nil {
		return cmd.Start()
	}
	own, err := os.Open("/proc/thread-self/ns/pid")
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Setns(int(pid.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("cannot enter the pod's process namespace: %w", err)
	}
	err = cmd.Start()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWPID); back != nil && err == nil {
		err = back
	}
	return err
}
