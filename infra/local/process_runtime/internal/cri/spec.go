package cri

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/images"
	"trainyard.dev/process-runtime/internal/seccomp"
)

// specOf turns a CRI container into what its init needs. It changes nothing on disk.
func (s *Server) specOf(c *member, p *pod, image *images.Image) (*container.Spec, error) {
	from := s.originOf(image)
	id, err := s.identify(c.config, image)
	if err != nil {
		return nil, err
	}
	sc := c.config.GetLinux().GetSecurityContext()
	capabilities, err := container.Capabilities(sc.GetPrivileged(), sc.GetCapabilities().GetAddCapabilities(),
		sc.GetCapabilities().GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	mounts, err := s.mountsOf(c, p, from.standIns(id), sc.GetPrivileged())
	if err != nil {
		return nil, err
	}
	filters, err := s.filtersOf(sc)
	if err != nil {
		return nil, err
	}
	folder := s.records.folder(containerRecords, c.id)
	spec := &container.Spec{
		Root: filepath.Join(folder, "root"), Show: image.Mounts, Mounts: mounts,
		Shm: filepath.Join(s.records.folder(podRecords, p.id), "shm"), Privileged: sc.GetPrivileged(),
		HostProcesses: sc.GetNamespaceOptions().GetPid() == cri.NamespaceMode_NODE, ReadonlyRoot: sc.GetReadonlyRootfs(),
		Masked: sc.GetMaskedPaths(), Readonly: sc.GetReadonlyPaths(), Identity: id.of(s.singleUser),
		Capabilities: capabilities, NoNewPrivs: sc.GetNoNewPrivs(), Seccomp: filters,
		OOMScoreAdj: int(c.config.GetLinux().GetResources().GetOomScoreAdj()),
		Process:     s.processOf(c.config, p, image, id),
	}
	from.hand(spec, id, folder)
	if namespacesOf(p.config).GetIpc() == cri.NamespaceMode_NODE {
		spec.Shm = "/dev/shm"
	}
	if sc.GetPrivileged() {
		spec.Masked, spec.Readonly = nil, nil
	}
	for _, d := range c.config.Devices {
		spec.Devices = append(spec.Devices, container.Device{Source: d.HostPath, Target: d.ContainerPath})
	}
	for _, pattern := range image.Devices {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("the image's device %q is not a valid pattern: %w", pattern, err)
		}
		for _, device := range found {
			// Folders such as /dev/nvidia-caps match too; what is in them has to be named.
			if info, err := os.Stat(device); err == nil && info.Mode()&os.ModeDevice != 0 {
				spec.Devices = append(spec.Devices, container.Device{Source: device, Target: device})
			}
		}
	}
	return spec, nil
}

// processOf decides command, environment and folder as a container runtime does: the container's own settings win over
// the image's. Nothing of the user's own environment gets in.
func (s *Server) processOf(config *cri.ContainerConfig, p *pod, image *images.Image, id identity) container.Process {
	args := slices.Concat(image.Entrypoint, image.Cmd)
	if len(config.Args) > 0 {
		args = slices.Concat(image.Entrypoint, config.Args)
	}
	if len(config.Command) > 0 {
		args = slices.Concat(config.Command, config.Args)
	}
	environment := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": id.home,
		"HOSTNAME": p.config.GetHostname(),
	}
	maps.Copy(environment, image.Environment)
	for _, e := range config.Envs {
		environment[e.Key] = string(e.Value)
	}
	maps.Copy(environment, s.config.Environment)
	if config.Tty && environment["TERM"] == "" {
		environment["TERM"] = "xterm"
	}
	process := container.Process{Args: args, Dir: "/", Terminal: config.Tty}
	for name, value := range environment {
		process.Env = append(process.Env, name+"="+value)
	}
	sort.Strings(process.Env)
	if image.WorkingDir != "" {
		process.Dir = image.WorkingDir
	}
	if config.WorkingDir != "" {
		process.Dir = config.WorkingDir
	}
	return process
}

// mountsOf gives the volumes, with the runtime's own files where the pod brings none.
func (s *Server) mountsOf(
	c *member, p *pod, standIns map[string][]byte, privileged bool,
) ([]container.Mount, error) {
	var mounts []container.Mount
	taken := map[string]bool{}
	for _, m := range c.config.Mounts {
		if m.GetImage() != nil {
			return nil, fmt.Errorf("image volumes are not supported by the process runtime")
		}
		if !filepath.IsAbs(m.HostPath) {
			return nil, fmt.Errorf("the volume source %q is not an absolute path", m.HostPath)
		}
		if m.RecursiveReadOnly && (!m.Readonly || m.Propagation != cri.MountPropagation_PROPAGATION_PRIVATE) {
			return nil, fmt.Errorf("a recursively read-only mount must be read-only and private: %s", m.ContainerPath)
		}
		propagation := uintptr(unix.MS_PRIVATE)
		switch m.Propagation {
		case cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			propagation = unix.MS_SLAVE
		case cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			return nil, fmt.Errorf("bidirectional mount propagation is not possible: the node's mounts are its own")
		}
		target := filepath.Clean("/" + m.ContainerPath)
		taken[target] = true
		mounts = append(mounts, container.Mount{
			Source: m.HostPath, Target: target, Readonly: m.Readonly, RecursiveReadonly: m.RecursiveReadOnly,
			Propagation: propagation,
		})
	}
	own := map[string]string{
		"/etc/resolv.conf": filepath.Join(s.records.folder(podRecords, p.id), "resolv.conf"),
		"/etc/hostname":    filepath.Join(s.records.folder(podRecords, p.id), "hostname"),
	}
	for target := range standIns {
		own[target] = s.standIn(c, target)
	}
	readonly := c.config.GetLinux().GetSecurityContext().GetReadonlyRootfs()
	for _, target := range slices.Sorted(maps.Keys(own)) {
		if !taken[target] {
			mounts = append(mounts, container.Mount{
				Source: own[target], Target: target, Propagation: unix.MS_PRIVATE, Readonly: readonly && !privileged,
			})
		}
	}
	return mounts, nil
}

// standIn is the container's own file for a path.
func (s *Server) standIn(c *member, target string) string {
	return filepath.Join(s.records.folder(containerRecords, c.id), filepath.Base(target))
}

// prepareFiles makes the container's own files.
func (s *Server) prepareFiles(c *member, p *pod, image *images.Image, spec *container.Spec) error {
	id, err := s.identify(c.config, image)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(spec.Root, 0o755); err != nil {
		return err
	}
	for target, text := range s.originOf(image).standIns(id) {
		if err := os.WriteFile(s.standIn(c, target), text, 0o644); err != nil {
			return err
		}
	}
	for i, m := range spec.Mounts {
		// Other runtimes make a missing source as a folder, and the kubelet counts on it for some host paths.
		if _, err := os.Stat(m.Source); os.IsNotExist(err) {
			if err := os.MkdirAll(m.Source, 0o755); err != nil {
				return fmt.Errorf("cannot make the volume source: %w", err)
			}
		}
		source, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			return fmt.Errorf("volume source: %w", err)
		}
		spec.Mounts[i].Source = source
	}
	return nil
}

// filtersOf gives the system call filters of a container.
func (s *Server) filtersOf(sc *cri.LinuxContainerSecurityContext) ([][]unix.SockFilter, error) {
	if sc.GetApparmor().GetProfileType() == cri.SecurityProfile_Localhost ||
		strings.HasPrefix(sc.GetApparmorProfile(), "localhost/") {
		return nil, fmt.Errorf("AppArmor profiles are not supported by the process runtime")
	}
	var filters [][]unix.SockFilter
	if s.singleUser {
		filters = append(filters, seccomp.IgnoreChown())
	}
	if sc.GetPrivileged() || sc.GetSeccomp() == nil {
		return filters, nil
	}
	switch sc.Seccomp.ProfileType {
	case cri.SecurityProfile_RuntimeDefault:
		administrator := false
		for _, name := range sc.GetCapabilities().GetAddCapabilities() {
			name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
			administrator = administrator || name == "SYS_ADMIN" || name == "ALL"
		}
		filters = append(filters, seccomp.Default(administrator, s.singleUser))
	case cri.SecurityProfile_Localhost:
		filter, err := seccomp.FromFile(strings.TrimPrefix(sc.Seccomp.LocalhostRef, "localhost/"))
		if err != nil {
			return nil, err
		}
		filters = append(filters, filter)
	}
	return filters, nil
}
