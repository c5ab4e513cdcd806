package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
)

// pod is a sandbox: a record, an address, files and namespaces. No process belongs to it.
type pod struct {
	id         string
	config     *cri.PodSandboxConfig
	handler    string
	state      cri.PodSandboxState
	created    int64
	address    string
	namespaces container.Namespaces
	pauser     *container.Pauser // where containers share their processes
	open       bool              // namespaces and shared memory exist
}

// podRecord is a pod on disk.
type podRecord struct {
	Config  json.RawMessage
	Handler string
	Ready   bool
	Created int64
	Address string
}

func (s *Server) recordPod(p *pod) error {
	text, err := protojson.Marshal(p.config)
	if err != nil {
		return err
	}
	return s.records.write(podRecords, p.id, podRecord{
		Config: text, Handler: p.handler, Ready: p.state == cri.PodSandboxState_SANDBOX_READY, Created: p.created,
		Address: p.address,
	})
}

// RunPodSandbox makes a pod.
func (s *Server) RunPodSandbox(_ context.Context, q *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	if q.GetConfig().GetMetadata() == nil {
		return nil, invalid("the pod has no metadata")
	}
	if q.RuntimeHandler != "" {
		return nil, invalid("no runtime handler %q: this runtime has only the default one", q.RuntimeHandler)
	}
	if namespacesOf(q.Config).GetUsernsOptions().GetMode() == cri.NamespaceMode_POD &&
		namespacesOf(q.Config).GetUsernsOptions() != nil {
		return nil, invalid("user namespaces of pods are not supported by the process runtime (hostUsers: false)")
	}
	for name := range q.Config.GetLinux().GetSysctls() {
		if err := container.CheckSysctl(name, hasOwnIPC(q.Config)); err != nil {
			return nil, invalid("%v", err)
		}
	}
	p := &pod{
		id: newID(), config: q.Config, handler: q.RuntimeHandler, created: time.Now().UnixNano(),
		state: cri.PodSandboxState_SANDBOX_READY,
	}
	s.mu.Lock()
	if onOwnNetwork(q.Config) {
		address, err := s.addresses.take()
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		p.address = address
	}
	s.mu.Unlock()
	err := s.openPod(p)
	if err == nil {
		err = s.recordPod(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.addresses.free(p.address)
		s.closePod(p)
		_ = s.records.remove(podRecords, p.id)
		return nil, err
	}
	s.pods[p.id] = p
	return &cri.RunPodSandboxResponse{PodSandboxId: p.id}, nil
}

func namespacesOf(c *cri.PodSandboxConfig) *cri.NamespaceOption {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// onOwnNetwork is false for pods of the host network, which have the node's address.
func onOwnNetwork(c *cri.PodSandboxConfig) bool {
	return namespacesOf(c).GetNetwork() != cri.NamespaceMode_NODE
}

func hasOwnIPC(c *cri.PodSandboxConfig) bool {
	return namespacesOf(c).GetIpc() != cri.NamespaceMode_NODE
}

// openPod makes what the pod's containers share. After a restart of the runtime it is made anew when first needed.
func (s *Server) openPod(p *pod) error {
	folder := s.records.folder(podRecords, p.id)
	shm := filepath.Join(folder, "shm")
	if err := os.MkdirAll(shm, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "resolv.conf"), resolvConf(p.config.GetDnsConfig()), 0o644); err != nil {
		return err
	}
	hostname := p.config.GetHostname()
	if hostname == "" {
		if own, err := os.Hostname(); err == nil {
			hostname = own
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "hostname"), []byte(hostname+"\n"), 0o644); err != nil {
		return err
	}
	ownIPC := hasOwnIPC(p.config)
	if ownIPC {
		if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"); err != nil {
			return fmt.Errorf("no shared memory for the pod: %w", err)
		}
	}
	// A pod of the host network keeps the host's name.
	namespaces, err := container.NewNamespaces(hostname, onOwnNetwork(p.config), ownIPC,
		p.config.GetLinux().GetSysctls())
	if err != nil {
		_ = unix.Unmount(shm, unix.MNT_DETACH)
		return err
	}
	p.namespaces, p.open = namespaces, true
	return nil
}

// closePod lets go of what openPod made.
func (s *Server) closePod(p *pod) {
	if p.pauser != nil {
		p.pauser.Stop()
		p.pauser = nil
	}
	p.namespaces.Close()
	p.open = false
	_ = unix.Unmount(filepath.Join(s.records.folder(podRecords, p.id), "shm"), unix.MNT_DETACH)
}

// resolvConf gives the pod's DNS settings, or the computer's where the pod has none.
func resolvConf(c *cri.DNSConfig) []byte {
	if len(c.GetServers())+len(c.GetSearches())+len(c.GetOptions()) == 0 {
		text, _ := os.ReadFile("/etc/resolv.conf")
		return text
	}
	var b strings.Builder
	if len(c.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.Searches, " "))
	}
	for _, server := range c.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(c.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.Options, " "))
	}
	return []byte(b.String())
}

// findPod takes a full ID or a unique beginning of one, as people type.
func (s *Server) findPod(id string) *pod {
	if p := s.pods[id]; p != nil || id == "" {
		return p
	}
	var found *pod
	for full, p := range s.pods {
		if strings.HasPrefix(full, id) {
			if found != nil {
				return nil
			}
			found = p
		}
	}
	return found
}

// StopPodSandbox ends the pod's containers and namespaces. The address stays taken until the pod is removed.
func (s *Server) StopPodSandbox(_ context.Context, q *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	s.mu.Lock()
	p := s.findPod(q.PodSandboxId)
	if p == nil {
		s.mu.Unlock()
		return &cri.StopPodSandboxResponse{}, nil // already removed: as asked for
	}
	p.state = cri.PodSandboxState_SANDBOX_NOTREADY
	members := s.membersOf(p)
	s.mu.Unlock()
	for _, c := range members {
		s.stop(c, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closePod(p)
	return &cri.StopPodSandboxResponse{}, s.recordPod(p)
}

// RemovePodSandbox forgets a pod and its containers.
func (s *Server) RemovePodSandbox(
	ctx context.Context, q *cri.RemovePodSandboxRequest,
) (*cri.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	p := s.findPod(q.PodSandboxId)
	s.mu.Unlock()
	if p == nil {
		return &cri.RemovePodSandboxResponse{}, nil
	}
	if _, err := s.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	members := s.membersOf(p)
	s.mu.Unlock()
	for _, c := range members {
		if err := s.remove(c); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.records.remove(podRecords, p.id); err != nil {
		return nil, err
	}
	s.addresses.free(p.address)
	delete(s.pods, p.id)
	return &cri.RemovePodSandboxResponse{}, nil
}

func (s *Server) membersOf(p *pod) []*member {
	var members []*member
	for _, c := range s.containers {
		if c.pod == p.id {
			members = append(members, c)
		}
	}
	return members
}

// PodSandboxStatus tells all about one pod.
func (s *Server) PodSandboxStatus(
	_ context.Context, q *cri.PodSandboxStatusRequest,
) (*cri.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.findPod(q.PodSandboxId)
	if p == nil {
		return nil, notFound("pod sandbox", q.PodSandboxId)
	}
	answer := &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id: p.id, Metadata: p.config.Metadata, State: p.state, CreatedAt: p.created, Labels: p.config.Labels,
		Annotations: p.config.Annotations, RuntimeHandler: p.handler,
		Network: &cri.PodSandboxNetworkStatus{Ip: p.address},
		Linux:   &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: namespacesOf(p.config)}},
	}}
	if q.Verbose {
		answer.Info = map[string]string{"note": "containers of this pod are processes of the node's computer"}
	}
	return answer, nil
}

// ListPodSandbox lists pods.
func (s *Server) ListPodSandbox(_ context.Context, q *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &cri.ListPodSandboxResponse{}
	for _, p := range s.pods {
		if f := q.GetFilter(); f != nil {
			if !strings.HasPrefix(p.id, f.Id) || f.State != nil && f.State.State != p.state ||
				!hasLabels(p.config.Labels, f.LabelSelector) {
				continue
			}
		}
		answer.Items = append(answer.Items, &cri.PodSandbox{
			Id: p.id, Metadata: p.config.Metadata, State: p.state, CreatedAt: p.created, Labels: p.config.Labels,
			Annotations: p.config.Annotations, RuntimeHandler: p.handler,
		})
	}
	return answer, nil
}

func hasLabels(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// UpdatePodSandboxResources keeps the new limits; nothing enforces limits of whole pods here.
func (s *Server) UpdatePodSandboxResources(
	_ context.Context, q *cri.UpdatePodSandboxResourcesRequest,
) (*cri.UpdatePodSandboxResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.findPod(q.PodSandboxId)
	if p == nil {
		return nil, notFound("pod sandbox", q.PodSandboxId)
	}
	config := proto.CloneOf(p.config)
	if config.Linux == nil {
		config.Linux = &cri.LinuxPodSandboxConfig{}
	}
	config.Linux.Overhead, config.Linux.Resources = q.Overhead, q.Resources
	p.config = config
	return &cri.UpdatePodSandboxResourcesResponse{}, s.recordPod(p)
}

// recoverPods reads pods that an earlier runtime recorded.
func (s *Server) recoverPods() error {
	texts, err := s.records.read(podRecords)
	if err != nil {
		return err
	}
	for id, text := range texts {
		var r podRecord
		config := &cri.PodSandboxConfig{}
		err := json.Unmarshal(text, &r)
		if err == nil {
			err = protojson.Unmarshal(r.Config, config)
		}
		// Whatever the earlier runtime had mounted is without use now.
		_ = unix.Unmount(filepath.Join(s.records.folder(podRecords, id), "shm"), unix.MNT_DETACH)
		if err != nil {
			log.Printf("removing the unreadable record of pod %s: %v", id, err)
			if err := s.records.remove(podRecords, id); err != nil {
				return err
			}
			continue
		}
		p := &pod{
			id: id, config: config, handler: r.Handler, created: r.Created, address: r.Address,
			state: cri.PodSandboxState_SANDBOX_NOTREADY,
		}
		if r.Ready {
			p.state = cri.PodSandboxState_SANDBOX_READY
		}
		s.addresses.keep(p.address)
		s.pods[id] = p
	}
	return nil
}
