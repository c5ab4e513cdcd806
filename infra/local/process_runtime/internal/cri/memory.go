package cri

import (
	"context"
	"log"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/processes"
)

// memoryInterval is how often memory limits are checked. A container can use more for that long: without cgroups, which
// need rights that an ordinary user has not, nothing stops it at the limit itself.
const memoryInterval = time.Second

// watchMemory ends containers that use more memory than their limit.
func (s *Server) watchMemory(ctx context.Context) {
	ticker := time.NewTicker(memoryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.checkMemory()
		}
	}
}

func (s *Server) checkMemory() {
	limited := s.measurable(func(c *member) bool {
		return c.state == cri.ContainerState_CONTAINER_RUNNING &&
			c.config.GetLinux().GetResources().GetMemoryLimitInBytes() > 0
	})
	if len(limited) == 0 {
		return
	}
	table, err := processes.Snapshot()
	if err != nil {
		return
	}
	for _, m := range limited {
		usage := table.Below(m.init)
		if usage.RSS <= uint64(m.limit) {
			continue
		}
		// The sum counts shared pages (libraries, forked workers) many times; ask the kernel for the exact figure.
		used := processes.Proportional(usage.PIDs)
		if used <= uint64(m.limit) {
			continue
		}
		s.mu.Lock()
		c := s.containers[m.id]
		if c != nil && c.state == cri.ContainerState_CONTAINER_RUNNING {
			log.Printf("container %s uses %d bytes of memory, its limit is %d: ending it", c.id, used, m.limit)
			c.outOfMemory = true
			go c.running.Kill()
		}
		s.mu.Unlock()
	}
}
