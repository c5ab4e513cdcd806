package cri

import (
	"bytes"
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
)

// mostOutput is what an exec probe may print before the rest is dropped, as in other runtimes.
const mostOutput = 16 << 20

// limited keeps the beginning of what is written to it.
type limited struct {
	bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.Buffer.Write(p[:n])
	return len(p), nil
}

// runnable gives a running container and the process to start in it.
func (s *Server) runnable(id string, command []string, terminal bool) (*member, container.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.findContainer(id)
	if c == nil {
		return nil, container.Process{}, notFound("container", id)
	}
	if c.state != cri.ContainerState_CONTAINER_RUNNING {
		return nil, container.Process{}, status.Errorf(codes.FailedPrecondition, "container %s is not running", c.id)
	}
	if len(command) == 0 {
		return nil, container.Process{}, invalid("no command")
	}
	process := c.spec.Process
	process.Args, process.Terminal = command, terminal
	return c, process, nil
}

// ExecSync runs a command in a container and waits for it, with a limit of time if one is given. The command is ended
// at that limit, together with what it started in its process group.
func (s *Server) ExecSync(ctx context.Context, q *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	c, process, err := s.runnable(q.ContainerId, q.Cmd, false)
	if err != nil {
		return nil, err
	}
	p, err := newPipes(false, false)
	if err != nil {
		return nil, err
	}
	defer p.closeOurs()
	started, err := c.running.Exec(process, p.theirs)
	p.closeTheirs()
	if err != nil {
		return nil, status.Errorf(codes.Unknown, "cannot run %q in the container: %v", q.Cmd, err)
	}
	stdout, stderr := &limited{left: mostOutput}, &limited{left: mostOutput}
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(stdout, p.output) })
	copying.Go(func() { _, _ = io.Copy(stderr, p.errors) })
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()

	var limit <-chan time.Time
	if q.Timeout > 0 {
		limit = time.After(time.Duration(q.Timeout) * time.Second)
	}
	select {
	case <-started.Done:
	case <-limit:
		_ = started.Signal(syscall.SIGKILL)
		<-started.Done
		return nil, status.Errorf(codes.DeadlineExceeded, "command %q timed out after %d s", q.Cmd, q.Timeout)
	case <-ctx.Done():
		_ = started.Signal(syscall.SIGKILL)
		<-started.Done
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	// A daemon that the command left behind may hold its output open: what came so far is the answer then.
	select {
	case <-copied:
	case <-time.After(outputGrace):
		p.closeOurs()
		<-copied
	}
	return &cri.ExecSyncResponse{
		Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: int32(started.Exit.Code),
	}, nil
}
