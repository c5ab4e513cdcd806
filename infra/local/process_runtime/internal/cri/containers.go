package cri

import (
	"context"
	"encoding/json"
	"log"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/crilog"
)

// Reasons that the kubelet and people know.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOMKilled = "OOMKilled"
	reasonStart     = "StartError"
	// reasonLost: the runtime died, and the container with it.
	reasonLost = "RuntimeRestarted"
)

// killedCode is the exit code of a process that SIGKILL ended.
const killedCode = 137

// member is a container of a pod.
type member struct {
	id, pod string
	config  *cri.ContainerConfig
	image   string // ID
	user    *cri.ContainerUser
	logPath string

	state                      cri.ContainerState
	created, started, finished int64
	code                       int32
	reason, message            string

	spec    *container.Spec // as it was started, for further processes
	running *container.Running
	log     *crilog.Log
	streams *streams
	// stopping serialises ends; outOfMemory says why one came.
	outOfMemory bool
	done        chan struct{} // closed when the end is recorded
}

// containerRecord is a container on disk.
type containerRecord struct {
	Pod, Image, LogPath        string
	Config, User               json.RawMessage
	State                      int32
	Created, Started, Finished int64
	Code                       int32
	Reason, Message            string
}

func (s *Server) record(c *member) error {
	config, err := protojson.Marshal(c.config)
	if err != nil {
		return err
	}
	user, err := protojson.Marshal(c.user)
	if err != nil {
		return err
	}
	return s.records.write(containerRecords, c.id, containerRecord{
		Pod: c.pod, Image: c.image, LogPath: c.logPath, Config: config, User: user, State: int32(c.state), Created: c.created,
		Started: c.started, Finished: c.finished, Code: c.code, Reason: c.reason, Message: c.message,
	})
}

// CreateContainer checks and records a container; all else happens when it is started.
func (s *Server) CreateContainer(
	_ context.Context, q *cri.CreateContainerRequest,
) (*cri.CreateContainerResponse, error) {
	if q.GetConfig().GetMetadata() == nil || q.Config.GetImage() == nil {
		return nil, invalid("the container has no metadata or no image")
	}
	image, err := s.images.Find(q.Config.Image.Image)
	if err != nil {
		return nil, err
	}
	if image == nil {
		return nil, notFound("image", q.Config.Image.Image)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.findPod(q.PodSandboxId)
	if p == nil {
		return nil, notFound("pod sandbox", q.PodSandboxId)
	}
	if p.state != cri.PodSandboxState_SANDBOX_READY {
		return nil, invalid("the pod sandbox %s is not ready", p.id)
	}
	identity, err := s.identify(q.Config, image)
	if err != nil {
		return nil, invalid("%v", err)
	}
	c := &member{
		id: newID(), pod: p.id, config: q.Config, image: image.ID, user: identity.status(s.singleUser),
		created: time.Now().UnixNano(), state: cri.ContainerState_CONTAINER_CREATED, done: make(chan struct{}),
	}
	if p.config.LogDirectory != "" && q.Config.LogPath != "" {
		c.logPath = filepath.Join(p.config.LogDirectory, q.Config.LogPath)
	}
	// Checked now, so that a mistake is one of creation; the result is made again at the start.
	if _, err := s.specOf(c, p, image); err != nil {
		return nil, invalid("%v", err)
	}
	if err := s.record(c); err != nil {
		return nil, err
	}
	s.containers[c.id] = c
	return &cri.CreateContainerResponse{ContainerId: c.id}, nil
}

// findContainer takes a full ID or a unique beginning of one.
func (s *Server) findContainer(id string) *member {
	if c := s.containers[id]; c != nil || id == "" {
		return c
	}
	var found *member
	for full, c := range s.containers {
		if strings.HasPrefix(full, id) {
			if found != nil {
				return nil
			}
			found = c
		}
	}
	return found
}

// RemoveContainer ends a container and forgets it.
func (s *Server) RemoveContainer(
	_ context.Context, q *cri.RemoveContainerRequest,
) (*cri.RemoveContainerResponse, error) {
	s.mu.Lock()
	c := s.findContainer(q.ContainerId)
	s.mu.Unlock()
	if c == nil {
		return &cri.RemoveContainerResponse{}, nil
	}
	return &cri.RemoveContainerResponse{}, s.remove(c)
}

func (s *Server) remove(c *member) error {
	s.stop(c, 0)
	if err := s.records.remove(containerRecords, c.id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, c.id)
	return nil
}

// ListContainers lists containers.
func (s *Server) ListContainers(_ context.Context, q *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &cri.ListContainersResponse{}
	for _, c := range s.containers {
		if f := q.GetFilter(); f != nil {
			if !strings.HasPrefix(c.id, f.Id) || !strings.HasPrefix(c.pod, f.PodSandboxId) ||
				f.State != nil && f.State.State != c.state || !hasLabels(c.config.Labels, f.LabelSelector) {
				continue
			}
		}
		answer.Containers = append(answer.Containers, &cri.Container{
			Id: c.id, PodSandboxId: c.pod, Metadata: c.config.Metadata, Image: c.config.Image, ImageRef: c.image,
			ImageId: c.image, State: c.state, CreatedAt: c.created, Labels: c.config.Labels, Annotations: c.config.Annotations,
		})
	}
	return answer, nil
}

// ContainerStatus tells all about one container.
func (s *Server) ContainerStatus(
	_ context.Context, q *cri.ContainerStatusRequest,
) (*cri.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.findContainer(q.ContainerId)
	if c == nil {
		return nil, notFound("container", q.ContainerId)
	}
	image := &cri.ImageSpec{Image: c.config.Image.GetUserSpecifiedImage()}
	if image.Image == "" {
		image = c.config.Image
	}
	answer := &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{
		Id: c.id, Metadata: c.config.Metadata, State: c.state, CreatedAt: c.created, StartedAt: c.started,
		FinishedAt: c.finished, ExitCode: c.code, Reason: c.reason, Message: c.message, Image: image, ImageRef: c.image,
		ImageId: c.image, Labels: c.config.Labels, Annotations: c.config.Annotations, Mounts: c.config.Mounts,
		LogPath: c.logPath, User: c.user, StopSignal: c.config.StopSignal,
		Resources: &cri.ContainerResources{Linux: c.config.GetLinux().GetResources()},
	}}
	if q.Verbose {
		info := map[string]any{"note": "this container is a process of the node's computer"}
		if c.running != nil {
			info["pid"] = c.running.InitPID
		}
		text, err := json.Marshal(info)
		if err != nil {
			return nil, err
		}
		answer.Info = map[string]string{"info": string(text)}
	}
	return answer, nil
}

// UpdateContainerResources keeps new limits. Of them the memory limit is enforced.
func (s *Server) UpdateContainerResources(
	_ context.Context, q *cri.UpdateContainerResourcesRequest,
) (*cri.UpdateContainerResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.findContainer(q.ContainerId)
	if c == nil {
		return nil, notFound("container", q.ContainerId)
	}
	config := proto.CloneOf(c.config)
	if config.Linux == nil {
		config.Linux = &cri.LinuxContainerConfig{}
	}
	if config.Linux.Resources == nil {
		config.Linux.Resources = &cri.LinuxContainerResources{}
	}
	if q.Linux != nil {
		mergeResources(config.Linux.Resources, q.Linux)
	}
	c.config = config
	return &cri.UpdateContainerResourcesResponse{}, s.record(c)
}

// mergeResources changes what the update names; zero values mean "as before".
func mergeResources(have, update *cri.LinuxContainerResources) {
	for _, f := range []struct{ to, from *int64 }{
		{&have.CpuPeriod, &update.CpuPeriod}, {&have.CpuQuota, &update.CpuQuota}, {&have.CpuShares, &update.CpuShares},
		{&have.MemoryLimitInBytes, &update.MemoryLimitInBytes}, {&have.OomScoreAdj, &update.OomScoreAdj},
		{&have.MemorySwapLimitInBytes, &update.MemorySwapLimitInBytes},
	} {
		if *f.from != 0 {
			*f.to = *f.from
		}
	}
	if update.CpusetCpus != "" {
		have.CpusetCpus = update.CpusetCpus
	}
	if update.CpusetMems != "" {
		have.CpusetMems = update.CpusetMems
	}
	if len(update.Unified) > 0 {
		have.Unified = update.Unified
	}
}

// recover reads what an earlier runtime recorded. What was running then has ended with it.
func (s *Server) recover() error {
	if err := s.recoverPods(); err != nil {
		return err
	}
	texts, err := s.records.read(containerRecords)
	if err != nil {
		return err
	}
	for id, text := range texts {
		c, err := s.readContainer(id, text)
		if err != nil || s.pods[c.pod] == nil {
			log.Printf("removing container %s, whose record or pod is gone: %v", id, err)
			if err := s.records.remove(containerRecords, id); err != nil {
				return err
			}
			continue
		}
		s.containers[id] = c
		if c.state != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		c.state, c.finished, c.code = cri.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), killedCode
		c.reason = reasonLost
		c.message = "the node's process runtime was restarted, which ends its containers"
		if err := s.record(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) readContainer(id string, text []byte) (*member, error) {
	var r containerRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	c := &member{
		id: id, pod: r.Pod, image: r.Image, logPath: r.LogPath, config: &cri.ContainerConfig{}, user: &cri.ContainerUser{},
		state: cri.ContainerState(r.State), created: r.Created, started: r.Started, finished: r.Finished, code: r.Code,
		reason: r.Reason, message: r.Message, done: make(chan struct{}),
	}
	if err := protojson.Unmarshal(r.Config, c.config); err != nil {
		return nil, err
	}
	return c, protojson.Unmarshal(r.User, c.user)
}
