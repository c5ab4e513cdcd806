package cri

import (
	"io"
	"os"
	"sync"
	"time"

	"trainyard.dev/process-runtime/internal/crilog"
)

// pipes are the standard streams of a process: its ends and ours.
type pipes struct {
	theirs []*os.File // input, output, errors; none for a terminal

	input          *os.File // nil: the process reads /dev/null
	output, errors *os.File
}

func newPipes(withInput, terminal bool) (*pipes, error) {
	p := &pipes{}
	if terminal {
		return p, nil
	}
	fail := func(err error) (*pipes, error) {
		p.closeTheirs()
		p.closeOurs()
		return nil, err
	}
	var stdin, stdout, stderr *os.File
	var err error
	if withInput {
		stdin, p.input, err = os.Pipe()
	} else {
		stdin, err = os.Open(os.DevNull)
	}
	if err != nil {
		return fail(err)
	}
	p.theirs = []*os.File{stdin}
	if p.output, stdout, err = os.Pipe(); err != nil {
		return fail(err)
	}
	p.theirs = append(p.theirs, stdout)
	if p.errors, stderr, err = os.Pipe(); err != nil {
		return fail(err)
	}
	p.theirs = append(p.theirs, stderr)
	return p, nil
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		_ = f.Close()
	}
	p.theirs = nil
}

func (p *pipes) closeOurs() {
	for _, f := range []*os.File{p.input, p.output, p.errors} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// streams are the running container's ends: its input, and those who listen to its output.
type streams struct {
	stdout, stderr *audience

	mu       sync.Mutex
	input    io.WriteCloser
	terminal *os.File
	ours     *pipes
}

func newStreams() *streams { return &streams{stdout: newAudience(), stderr: newAudience()} }

// connect copies the container's output to its log and to who is attached; the channel is closed at the output's end.
func (s *streams) connect(p *pipes, terminal *os.File, log *crilog.Log) <-chan struct{} {
	s.mu.Lock()
	s.ours, s.terminal = p, terminal
	if terminal != nil {
		s.input = terminal
	} else if p.input != nil {
		s.input = p.input
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if terminal != nil {
			log.Copy("stdout", terminal, s.stdout)
			return
		}
		var wait sync.WaitGroup
		wait.Go(func() { log.Copy("stdout", p.output, s.stdout) })
		wait.Go(func() { log.Copy("stderr", p.errors, s.stderr) })
		wait.Wait()
	}()
	return done
}

// closeInput ends the container's input, after the only client that may write it has left.
func (s *streams) closeInput() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.input != nil && s.terminal == nil {
		_ = s.input.Close()
		s.input = nil
	}
}

func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal != nil {
		_ = s.terminal.Close()
	}
	if s.ours != nil {
		s.ours.closeOurs()
	}
	s.input = nil
}

// audience passes output on to all who are attached. Writing to it never fails, so the log goes on.
type audience struct {
	mu        sync.Mutex
	listeners map[*listener]struct{}
}

// listener is one attached client.
type listener struct {
	pieces chan []byte
	// done is closed when all pieces have been written, or the client has gone.
	done chan struct{}
}

const (
	// waitingPieces may be on their way to a client, each up to a line's length.
	waitingPieces = 64
	// patience is how long a container's output waits for a client that does not read. Then the client is dropped: a
	// forgotten `kubectl attach` must not stop a training.
	patience = 5 * time.Second
)

func newAudience() *audience { return &audience{listeners: map[*listener]struct{}{}} }

func (a *audience) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.listeners {
		piece := append([]byte{}, p...)
		select {
		case l.pieces <- piece:
			continue
		default:
		}
		select {
		case l.pieces <- piece:
		case <-l.done:
			a.drop(l)
		case <-time.After(patience):
			a.drop(l)
		}
	}
	return len(p), nil
}

// join passes output on to w from now on.
func (a *audience) join(w io.Writer) *listener {
	l := &listener{pieces: make(chan []byte, waitingPieces), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for piece := range l.pieces {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners[l] = struct{}{}
	return l
}

// leave ends it, after what is on its way has been written.
func (a *audience) leave(l *listener) {
	a.mu.Lock()
	a.drop(l)
	a.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}

// drop is called with the lock held.
func (a *audience) drop(l *listener) {
	if _, there := a.listeners[l]; there {
		delete(a.listeners, l)
		close(l.pieces)
	}
}
