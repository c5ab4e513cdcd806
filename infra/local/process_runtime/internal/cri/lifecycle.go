package cri

import (
	"context"
	"fmt"
	"log"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/crilog"
)

// StartContainer starts a created container.
func (s *Server) StartContainer(
	_ context.Context, q *cri.StartContainerRequest,
) (*cri.StartContainerResponse, error) {
	s.mu.Lock()
	c := s.findContainer(q.ContainerId)
	if c == nil {
		s.mu.Unlock()
		return nil, notFound("container", q.ContainerId)
	}
	if c.state != cri.ContainerState_CONTAINER_CREATED || c.streams != nil {
		s.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not in the created state", c.id)
	}
	c.streams = newStreams() // also marks that a start is under way
	p := s.pods[c.pod]
	var err error
	if p == nil || p.state != cri.PodSandboxState_SANDBOX_READY {
		err = invalid("the container's pod sandbox %s is not ready", c.pod)
	} else if !p.open {
		err = s.openPod(p)
	}
	s.mu.Unlock()
	if err == nil {
		err = s.start(c, p)
	}
	if err != nil {
		s.failStart(c, err)
		return nil, status.Errorf(codes.Unknown, "cannot start the container: %v", err)
	}
	return &cri.StartContainerResponse{}, nil
}

func (s *Server) start(c *member, p *pod) error {
	image, err := s.images.Find(c.image)
	if err != nil {
		return err
	}
	if image == nil {
		return fmt.Errorf("the container's image is no longer in the image table")
	}
	spec, err := s.specOf(c, p, image)
	if err != nil {
		return err
	}
	if len(spec.Process.Args) == 0 {
		return fmt.Errorf("no command: neither the container nor its image %s names one", image.Name)
	}
	if err := s.prepareFiles(c, p, image, spec); err != nil {
		return err
	}
	if c.log, err = crilog.Open(c.logPath); err != nil {
		return err
	}
	namespaces, release, err := s.processNamespace(c, p)
	if err != nil {
		return err
	}
	defer release()
	pipes, err := newPipes(c.config.Stdin, c.config.Tty)
	if err != nil {
		return err
	}
	running, err := container.Start(*spec, namespaces, pipes.theirs)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return err
	}
	copied := c.streams.connect(pipes, running.Main.Terminal, c.log)
	s.mu.Lock()
	c.spec, c.running = spec, running
	c.state, c.started = cri.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	err = s.record(c)
	s.mu.Unlock()
	if err != nil {
		log.Printf("container %s: %v", c.id, err)
	}
	go s.follow(c, copied)
	return nil
}

// processNamespace completes the pod's namespaces for one container: with the processes of its own (nil), of the pod or
// of another container. release is to be called when the container has started.
func (s *Server) processNamespace(c *member, p *pod) (ns container.Namespaces, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, release = p.namespaces, func() {}
	options := c.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch {
	case options == nil: // what the kubelet always sets; without it a container keeps to itself
	case options.Pid == cri.NamespaceMode_POD:
		if p.pauser == nil {
			if p.pauser, err = container.StartPause(); err != nil {
				return ns, release, err
			}
		}
		ns.PID = p.pauser.Namespace
	case options.Pid == cri.NamespaceMode_TARGET:
		target := s.findContainer(options.TargetId)
		if target == nil || target.state != cri.ContainerState_CONTAINER_RUNNING {
			return ns, release, fmt.Errorf("the target container %q is not running", options.TargetId)
		}
		if ns.PID, err = container.ProcessNamespace(target.running.InitPID); err != nil {
			return ns, release, err
		}
		release = func() { _ = ns.PID.Close() }
	}
	return ns, release, nil
}

// failStart records a container that never ran.
func (s *Server) failStart(c *member, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.log != nil {
		c.log.Close()
	}
	now := time.Now().UnixNano()
	c.state, c.started, c.finished, c.code = cri.ContainerState_CONTAINER_EXITED, now, now, 128
	c.reason, c.message = reasonStart, err.Error()
	close(c.done)
	if err := s.record(c); err != nil {
		log.Printf("container %s: %v", c.id, err)
	}
}

// outputGrace is how long output is awaited after a container has ended. Its processes are gone by then, so only a
// stream that another process of the computer holds open could take longer.
const outputGrace = 2 * time.Second

// follow waits for a container's end and records it, after all its output is in the log.
func (s *Server) follow(c *member, copied <-chan struct{}) {
	<-c.running.Main.Done
	finished := time.Now().UnixNano()
	<-c.running.Gone()
	select {
	case <-copied:
	case <-time.After(outputGrace):
	}
	c.streams.close()
	c.log.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	exit := c.running.Main.Exit
	c.state, c.finished, c.code = cri.ContainerState_CONTAINER_EXITED, finished, int32(exit.Code)
	switch {
	case c.outOfMemory:
		c.code, c.reason = killedCode, reasonOOMKilled
		c.message = "the container's processes used more memory than its limit"
	case exit.Code == 0:
		c.reason = reasonCompleted
	default:
		c.reason = reasonError
	}
	if err := s.record(c); err != nil && !os.IsNotExist(err) {
		log.Printf("container %s: %v", c.id, err)
	}
	close(c.done)
}

// StopContainer ends a container: its stop signal, then SIGKILL after the timeout.
func (s *Server) StopContainer(_ context.Context, q *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	s.mu.Lock()
	c := s.findContainer(q.ContainerId)
	s.mu.Unlock()
	if c != nil {
		s.stop(c, time.Duration(q.Timeout)*time.Second)
	}
	return &cri.StopContainerResponse{}, nil
}

// stop ends a container and returns when its end is recorded. A container that never ran is left as it is.
func (s *Server) stop(c *member, grace time.Duration) {
	s.mu.Lock()
	running := c.running
	active := c.state == cri.ContainerState_CONTAINER_RUNNING
	signal := s.stopSignal(c)
	s.mu.Unlock()
	if !active {
		return
	}
	if grace > 0 {
		_ = running.Main.Signal(signal)
		select {
		case <-c.done:
			return
		case <-time.After(grace):
		}
	}
	running.Kill()
	<-c.done
}

// stopSignal is the container's, the image's, or SIGTERM.
func (s *Server) stopSignal(c *member) syscall.Signal {
	if c.config.GetStopSignal() != cri.Signal_RUNTIME_DEFAULT {
		if signal := signalNamed(c.config.GetStopSignal().String()); signal != 0 {
			return signal
		}
	}
	if image, err := s.images.Find(c.image); err == nil && image != nil && image.StopSignal != "" {
		if signal := signalNamed(image.StopSignal); signal != 0 {
			return signal
		}
	}
	return syscall.SIGTERM
}

// ReopenContainerLog is called after the kubelet has rotated a log.
func (s *Server) ReopenContainerLog(
	_ context.Context, q *cri.ReopenContainerLogRequest,
) (*cri.ReopenContainerLogResponse, error) {
	s.mu.Lock()
	c := s.findContainer(q.ContainerId)
	running := c != nil && c.state == cri.ContainerState_CONTAINER_RUNNING
	s.mu.Unlock()
	if c == nil {
		return nil, notFound("container", q.ContainerId)
	}
	if !running {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not running", c.id)
	}
	return &cri.ReopenContainerLogResponse{}, c.log.Reopen()
}
