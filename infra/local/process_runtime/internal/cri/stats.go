package cri

import (
	"context"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/processes"
)

// statsCache remembers sizes of containers' folders: walking them is much dearer than all else here.
type statsCache struct {
	mu    sync.Mutex
	sizes map[string]diskSize
}

type diskSize struct {
	at           time.Time
	bytes, files uint64
}

// sizeAge is how old a folder's size may be.
const sizeAge = 10 * time.Second

func (s *statsCache) size(folder string) diskSize {
	s.mu.Lock()
	known := s.sizes[folder]
	s.mu.Unlock()
	if time.Since(known.at) < sizeAge {
		return known
	}
	known.bytes, known.files = processes.DiskUsage(folder)
	known.at = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes == nil {
		s.sizes = map[string]diskSize{}
	}
	for folder, old := range s.sizes {
		if time.Since(old.at) > 10*sizeAge {
			delete(s.sizes, folder)
		}
	}
	s.sizes[folder] = known
	return known
}

func u64(n uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: n} }

// measured is what is needed of a container to measure it without holding the lock.
type measured struct {
	attributes *cri.ContainerAttributes
	id, pod    string
	init       int // 0: not running
	limit      int64
}

func (s *Server) measurable(keep func(*member) bool) []measured {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []measured
	for _, c := range s.containers {
		if !keep(c) {
			continue
		}
		m := measured{
			id: c.id, pod: c.pod, limit: c.config.GetLinux().GetResources().GetMemoryLimitInBytes(),
			attributes: &cri.ContainerAttributes{
				Id: c.id, Metadata: c.config.Metadata, Labels: c.config.Labels, Annotations: c.config.Annotations,
			},
		}
		if c.state == cri.ContainerState_CONTAINER_RUNNING {
			m.init = c.running.InitPID
		}
		list = append(list, m)
	}
	return list
}

func (s *Server) measure(m measured, table *processes.Table) *cri.ContainerStats {
	now := time.Now().UnixNano()
	var usage processes.Usage
	if m.init != 0 {
		usage = table.Below(m.init)
	}
	return &cri.ContainerStats{
		Attributes: m.attributes, Cpu: cpuOf(usage, now), Memory: memoryOf(usage, now, m.limit),
		WritableLayer: s.diskUsage(s.records.folder(containerRecords, m.id)),
	}
}

// diskUsage of a folder, which may be a few seconds old.
func (s *Server) diskUsage(folder string) *cri.FilesystemUsage {
	size := s.stats.size(folder)
	return &cri.FilesystemUsage{
		Timestamp: size.at.UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: s.config.RuntimeDir()},
		UsedBytes: u64(size.bytes), InodesUsed: u64(size.files),
	}
}

func cpuOf(u processes.Usage, now int64) *cri.CpuUsage {
	// The kubelet makes a rate of two of these; a rate given here, even 0, would be taken instead.
	return &cri.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: u64(uint64(u.CPU))}
}

// memoryOf reports the resident memory of the tree. Pages that its processes share are counted for each of them.
func memoryOf(u processes.Usage, now, limit int64) *cri.MemoryUsage {
	available := uint64(0)
	if limit > 0 && uint64(limit) > u.RSS {
		available = uint64(limit) - u.RSS
	}
	return &cri.MemoryUsage{
		Timestamp: now, WorkingSetBytes: u64(u.RSS), RssBytes: u64(u.RSS), UsageBytes: u64(u.RSS),
		AvailableBytes: u64(available),
	}
}

// ContainerStats measures one container.
func (s *Server) ContainerStats(_ context.Context, q *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	s.mu.Lock()
	c := s.findContainer(q.ContainerId)
	s.mu.Unlock()
	if c == nil {
		return nil, notFound("container", q.ContainerId)
	}
	table, err := processes.Snapshot()
	if err != nil {
		return nil, err
	}
	for _, m := range s.measurable(func(other *member) bool { return other == c }) {
		return &cri.ContainerStatsResponse{Stats: s.measure(m, table)}, nil
	}
	return nil, notFound("container", q.ContainerId)
}

// ListContainerStats measures running containers.
func (s *Server) ListContainerStats(
	_ context.Context, q *cri.ListContainerStatsRequest,
) (*cri.ListContainerStatsResponse, error) {
	table, err := processes.Snapshot()
	if err != nil {
		return nil, err
	}
	f := q.GetFilter()
	list := s.measurable(func(c *member) bool {
		return c.state == cri.ContainerState_CONTAINER_RUNNING && (f.GetId() == "" || f.GetId() == c.id) &&
			(f.GetPodSandboxId() == "" || f.GetPodSandboxId() == c.pod) && hasLabels(c.config.Labels, f.GetLabelSelector())
	})
	answer := &cri.ListContainerStatsResponse{}
	for _, m := range list {
		answer.Stats = append(answer.Stats, s.measure(m, table))
	}
	return answer, nil
}

// PodSandboxStats measures one pod.
func (s *Server) PodSandboxStats(
	_ context.Context, q *cri.PodSandboxStatsRequest,
) (*cri.PodSandboxStatsResponse, error) {
	s.mu.Lock()
	p := s.findPod(q.PodSandboxId)
	s.mu.Unlock()
	if p == nil {
		return nil, notFound("pod sandbox", q.PodSandboxId)
	}
	table, err := processes.Snapshot()
	if err != nil {
		return nil, err
	}
	return &cri.PodSandboxStatsResponse{Stats: s.measurePod(p, table)}, nil
}

// ListPodSandboxStats measures pods.
func (s *Server) ListPodSandboxStats(
	_ context.Context, q *cri.ListPodSandboxStatsRequest,
) (*cri.ListPodSandboxStatsResponse, error) {
	table, err := processes.Snapshot()
	if err != nil {
		return nil, err
	}
	f := q.GetFilter()
	s.mu.Lock()
	var pods []*pod
	for _, p := range s.pods {
		if p.state == cri.PodSandboxState_SANDBOX_READY && (f.GetId() == "" || f.GetId() == p.id) &&
			hasLabels(p.config.Labels, f.GetLabelSelector()) {
			pods = append(pods, p)
		}
	}
	s.mu.Unlock()
	answer := &cri.ListPodSandboxStatsResponse{}
	for _, p := range pods {
		answer.Stats = append(answer.Stats, s.measurePod(p, table))
	}
	return answer, nil
}

func (s *Server) measurePod(p *pod, table *processes.Table) *cri.PodSandboxStats {
	list := s.measurable(func(c *member) bool {
		return c.pod == p.id && c.state == cri.ContainerState_CONTAINER_RUNNING
	})
	now := time.Now().UnixNano()
	var sum processes.Usage
	linux := &cri.LinuxPodSandboxStats{
		// All pods share the computer's network, so there is nothing to tell apart.
		Network: &cri.NetworkUsage{Timestamp: now},
	}
	for _, m := range list {
		linux.Containers = append(linux.Containers, s.measure(m, table))
		u := table.Below(m.init)
		sum.CPU += u.CPU
		sum.RSS += u.RSS
		sum.Processes += u.Processes
	}
	linux.Cpu, linux.Memory = cpuOf(sum, now), memoryOf(sum, now, 0)
	linux.Process = &cri.ProcessUsage{Timestamp: now, ProcessCount: u64(sum.Processes)}
	return &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{
			Id: p.id, Metadata: p.config.Metadata, Labels: p.config.Labels, Annotations: p.config.Annotations,
		},
		Linux: linux,
	}
}
