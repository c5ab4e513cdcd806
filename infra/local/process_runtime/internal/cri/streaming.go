package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/processes"
)

// startStreaming serves exec, attach and port-forward. Each address that it gives out holds a secret that can be used
// once within a minute, so that other users of the computer cannot enter containers.
func (s *Server) startStreaming(listener net.Listener) error {
	settings := streaming.DefaultConfig
	settings.Addr = listener.Addr().String()
	settings.BaseURL = &url.URL{Scheme: "http", Host: settings.Addr}
	server, err := streaming.NewServer(settings, streamer{s})
	if err != nil {
		return err
	}
	s.streaming = server
	go func() {
		web := &http.Server{Handler: server, ReadHeaderTimeout: 30 * time.Second}
		if err := web.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Printf("streaming ended: %v", err)
		}
	}()
	return nil
}

// Exec gives the address at which a command can be run interactively.
func (s *Server) Exec(_ context.Context, q *cri.ExecRequest) (*cri.ExecResponse, error) {
	if _, _, err := s.runnable(q.ContainerId, q.Cmd, q.Tty); err != nil {
		return nil, err
	}
	return s.streaming.GetExec(q)
}

// Attach gives the address at which a container's main process can be talked to.
func (s *Server) Attach(_ context.Context, q *cri.AttachRequest) (*cri.AttachResponse, error) {
	if _, _, err := s.runnable(q.ContainerId, []string{"attach"}, q.Tty); err != nil {
		return nil, err
	}
	return s.streaming.GetAttach(q)
}

// PortForward gives the address at which ports of a pod can be reached.
func (s *Server) PortForward(_ context.Context, q *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	s.mu.Lock()
	p := s.findPod(q.PodSandboxId)
	s.mu.Unlock()
	if p == nil {
		return nil, notFound("pod sandbox", q.PodSandboxId)
	}
	return s.streaming.GetPortForward(q)
}

// streamer does what the streaming server asks for.
type streamer struct{ server *Server }

// exitError tells the streaming server a command's exit code.
type exitError int

func (e exitError) Error() string   { return "command terminated with exit code " + strconv.Itoa(int(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

// Exec runs a command between the given streams.
func (t streamer) Exec(
	ctx context.Context, id string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	c, process, err := t.server.runnable(id, command, tty)
	if err != nil {
		return err
	}
	if tty {
		process.Env = withTerm(process.Env)
	}
	p, err := newPipes(in != nil, tty)
	if err != nil {
		return err
	}
	defer p.closeOurs()
	started, err := c.running.Exec(process, p.theirs)
	p.closeTheirs()
	if err != nil {
		return err
	}
	var copying sync.WaitGroup
	if tty {
		defer started.Terminal.Close()
		go follow(started.Terminal, resize)
		if in != nil {
			go func() { _, _ = io.Copy(started.Terminal, in) }()
		}
		if out != nil {
			copying.Go(func() { _, _ = io.Copy(out, started.Terminal) })
		} else {
			go func() { _, _ = io.Copy(io.Discard, started.Terminal) }()
		}
	} else {
		if in != nil {
			go func() {
				_, _ = io.Copy(p.input, in)
				_ = p.input.Close()
			}()
		}
		copying.Go(func() { _, _ = io.Copy(orDiscard(out), p.output) })
		copying.Go(func() { _, _ = io.Copy(orDiscard(errs), p.errors) })
	}
	select {
	case <-started.Done:
	case <-ctx.Done():
		_ = started.Signal(syscall.SIGKILL)
		<-started.Done
	}
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()
	select {
	case <-copied:
	case <-time.After(outputGrace):
	}
	if code := started.Exit.Code; code != 0 {
		return exitError(code)
	}
	return nil
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func withTerm(environment []string) []string {
	for _, e := range environment {
		if len(e) > 5 && e[:5] == "TERM=" {
			return environment
		}
	}
	return append(append([]string{}, environment...), "TERM=xterm")
}

// follow passes on changes of the client's window.
func follow(terminal *os.File, resize <-chan remotecommand.TerminalSize) {
	for size := range resize {
		_ = container.ResizeTerminal(terminal, size.Width, size.Height)
	}
}

// Attach joins a client to the container's main process.
func (t streamer) Attach(
	ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	c, _, err := t.server.runnable(id, []string{"attach"}, tty)
	if err != nil {
		return err
	}
	streams := c.streams
	streams.mu.Lock()
	input, terminal := streams.input, streams.terminal
	streams.mu.Unlock()
	if terminal != nil {
		go follow(terminal, resize)
	}
	if out != nil {
		defer streams.stdout.leave(streams.stdout.join(out))
	}
	if errs != nil {
		defer streams.stderr.leave(streams.stderr.join(errs))
	}
	left := make(chan struct{})
	if in != nil && input != nil {
		go func() {
			_, _ = io.Copy(input, in)
			if c.config.StdinOnce {
				streams.closeInput()
			}
			if out == nil && errs == nil {
				close(left)
			}
		}()
	}
	select {
	case <-c.done:
	case <-left:
	case <-ctx.Done():
	}
	return nil
}

// PortForward connects a stream with a port of a pod.
func (t streamer) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	address, err := t.server.listener(id, uint16(port))
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", address.String(), dialLimit)
	if err != nil {
		return fmt.Errorf("cannot reach port %d of the pod: %w", port, err)
	}
	defer conn.Close()
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(conn, stream)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		done <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(stream, conn)
		done <- struct{}{}
	}()
	<-done
	select { // the other direction ends soon, unless a client forgets to close
	case <-done:
	case <-time.After(time.Second):
	}
	return nil
}

// dialLimit is enough for any connection within one computer.
const dialLimit = 5 * time.Second

// listener finds where a pod listens on a port. All pods share the computer's network, so the pod's own processes are
// looked at: another pod's or the user's server on the same port must not answer in its place.
func (s *Server) listener(id string, port uint16) (netip.AddrPort, error) {
	none := netip.AddrPort{}
	s.mu.Lock()
	p := s.findPod(id)
	s.mu.Unlock()
	if p == nil {
		return none, notFound("pod sandbox", id)
	}
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if p.address == "" { // the host network's pod: the host's ports are its own
		return netip.AddrPortFrom(local, port), nil
	}
	table, err := processes.Snapshot()
	if err != nil {
		return none, err
	}
	var pids []int
	for _, m := range s.measurable(func(c *member) bool { return c.pod == p.id }) {
		if m.init != 0 {
			pids = append(pids, table.Tree(m.init).PIDs...)
		}
	}
	own, err := netip.ParseAddr(p.address)
	if err != nil {
		return none, err
	}
	for _, address := range processes.Listeners(pids, port) {
		if address.IsUnspecified() {
			address = own
		}
		return netip.AddrPortFrom(address, port), nil
	}
	return none, fmt.Errorf("no process of the pod listens on port %d", port)
}
