package cri

import (
	"io"
	"os"
	"sync"

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
	s.stdout.close()
	s.stderr.close()
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
	mu      sync.Mutex
	writers map[io.Writer]struct{}
	ended   chan struct{}
}

func newAudience() *audience {
	return &audience{writers: map[io.Writer]struct{}{}, ended: make(chan struct{})}
}

func (a *audience) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.writers {
		if _, err := w.Write(p); err != nil {
			delete(a.writers, w)
		}
	}
	return len(p), nil
}

func (a *audience) join(w io.Writer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writers[w] = struct{}{}
}

func (a *audience) leave(w io.Writer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.writers, w)
}

func (a *audience) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writers = map[io.Writer]struct{}{}
	close(a.ended)
}
