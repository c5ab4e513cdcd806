package main

import (
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func security(change func(*runtimeapi.LinuxContainerSecurityContext)) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) { change(c.Linux.SecurityContext) }
}

func TestTheEnvironmentHoldsNothingOfTheUsersOwn(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.config["environment"] = map[string]string{"FROM_NODE": "node", "OVERRIDDEN": "node"}
		n.start("AWS_SECRET_ACCESS_KEY=secret", "TRAINYARD_PROCESS=x:n")
		text := n.pod().output("env; tr '\\0' '\\n' </proc/1/environ", func(c *runtimeapi.ContainerConfig) {
			c.Envs = []*runtimeapi.KeyValue{
				{Key: "FROM_POD", Value: []byte("pod")}, {Key: "BOTH", Value: []byte("pod")},
				{Key: "OVERRIDDEN", Value: []byte("pod")},
			}
		})
		contains(t, text, "FROM_IMAGE=image\n", "FROM_POD=pod\n", "BOTH=pod\n", "FROM_NODE=node\n", "OVERRIDDEN=node\n",
			"HOSTNAME=worker-0\n", "HOME=/root\n", "PATH=/usr")
		lacks(t, text, "secret", "TRAINYARD_PROCESS")
	})
}

func TestWhatMayHoldSecretsIsHidden(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		must(t, os.WriteFile(n.dir+"/node/ca.key", []byte("key"), 0o644))
		must(t, os.Mkdir(n.dir+"/hidden", 0o755))
		must(t, os.WriteFile(n.dir+"/hidden/token", []byte("token"), 0o644))
		must(t, os.Mkdir(n.dir+"/shown", 0o755))
		must(t, os.WriteFile(n.dir+"/shown/data", []byte("data\n"), 0o644))
		// /tmp is a container's own, so the image has to ask for what lies there.
		n.config["hide"] = []string{n.dir + "/hidden"}
		n.writeImages(map[string]any{shellImage: map[string]any{
			"entrypoint": []string{"sh"}, "mounts": []string{n.dir + "/shown"},
		}})
		n.start()
		text := n.pod().output("ls -A /root /home /tmp; cat "+n.dir+"/shown/data; cat /etc/shadow; "+
			"echo x > "+n.dir+"/shown/data; cat "+n.dir+"/node/ca.key; cat "+n.dir+"/hidden/token",
			security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = &runtimeapi.Int64Value{Value: 0} }))
		contains(t, text, "data\n", "Read-only file system", n.dir+"/node/ca.key: No such file",
			n.dir+"/hidden/token: No such file")
		lacks(t, text, "root:*", "root:!", "root:$", ".ssh", ".bashrc")
	})
}

func TestTheComputersFilesAreReadOnlyAndTheContainersOwnAreNot(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		text := n.pod().output(`
			for d in /tmp /run /var/log $HOME /dev/shm /new; do mkdir -p $d; echo x >$d/file && echo "$d ok"; done
			for d in /etc /usr /usr/bin /bin; do echo x >$d/prt-test-file && echo "$d WRITTEN"; done`)
		contains(t, text, "/tmp ok", "/run ok", "/var/log ok", "/root ok", "/dev/shm ok", "/new ok")
		lacks(t, text, "WRITTEN")
	})
}

func TestVolumesAppearWhereverTheyAreWanted(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		volume := n.dir + "/node/volume" // below a hidden folder, as the kubelet's are
		must(t, os.MkdirAll(volume, 0o777))
		must(t, os.WriteFile(volume+"/file", []byte("content\n"), 0o644))
		n.start()
		mounts := func(readonly bool, targets ...string) func(c *runtimeapi.ContainerConfig) {
			return func(c *runtimeapi.ContainerConfig) {
				for _, target := range targets {
					c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: volume, ContainerPath: target, Readonly: readonly})
				}
			}
		}
		p := n.pod()
		// At the root, under a link, inside a folder of the computer that lacks the place, over one that is there, and in
		// another volume.
		text := p.output("cat /checkpoints/file /var/run/secrets/x/file /etc/no/such/file /usr/share/file "+
			"/checkpoints/deep/file; "+
			"ls /etc/passwd /etc/os-release; echo new >/checkpoints/written",
			mounts(false, "/checkpoints", "/var/run/secrets/x", "/etc/no/such", "/usr/share", "/checkpoints/deep"))
		expect(t, "five times the file, then the others", text,
			"content\ncontent\ncontent\ncontent\ncontent\n/etc/os-release\n/etc/passwd\n")
		written, err := os.ReadFile(volume + "/written")
		must(t, err)
		expect(t, "written through", string(written), "new\n")
		if _, err := os.Stat("/etc/no"); err == nil {
			t.Error("a mount point was left on the computer")
		}
		contains(t, p.output("echo x >/ro/file", mounts(true, "/ro")), "Read-only file system")
	})
}

func TestReadOnlyRootMaskedAndReadOnlyPaths(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		text := n.pod().output("echo x >/file; echo x >/tmp/file; echo x >/dev/null && echo dev ok; "+
			"cat /etc/os-release; ls /usr/share/; /bin/ls /; echo x >/proc/self/comm && echo proc ok",
			security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.ReadonlyRootfs = true
				s.MaskedPaths = []string{"/usr/share", "/bin/ls", "/no/such/path"}
				s.ReadonlyPaths = []string{"/proc/sys", "/no/such/path"}
			}))
		contains(t, text, "/file: Read-only file system", "/tmp/file: Read-only file system", "dev ok", "proc ok", "NAME=",
			"/bin/ls: Permission denied")
		lacks(t, text, "doc\n")
	})
}

func TestHostNameAndNameServersAreThePods(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		text := n.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.DnsConfig = &runtimeapi.DNSConfig{
				Servers: []string{"10.1.2.3"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"},
			}
		}).output("uname -n; cat /etc/hostname /etc/resolv.conf")
		expect(t, "names", text, "worker-0\nworker-0\nsearch a.b\nnameserver 10.1.2.3\noptions ndots:5\n")
	})
}

func TestContainersOfAPodShareTheirMemoryFilesAndKernelSettings(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1"}
		})
		p.output("echo shared >/dev/shm/file")
		expect(t, "what the next one sees", p.output("cat /dev/shm/file /proc/sys/kernel/shm_rmid_forced"), "shared\n1\n")
		contains(t, n.pod().output("cat /dev/shm/file"), "No such file")
		_, err := n.runtime.RunPodSandbox(n.context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"},
			Linux:    &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"net.core.somaxconn": "1"}},
		}})
		if err == nil {
			t.Error("a setting of the computer's network was accepted")
		}
	})
}

func TestWhatAnImageNeedsFromAHomeFolderIsSeenByAnyUser(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		home, err := os.UserHomeDir()
		must(t, err)
		if !n.isRoot() {
			home = n.dir // an ordinary user cannot look into the home folder of who runs the tests
		}
		tools, err := os.MkdirTemp(home, "prt-tools-")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(tools)) })
		must(t, os.Chmod(tools, 0o755))
		must(t, os.WriteFile(tools+"/tool", []byte("#!/bin/sh\necho it works\n"), 0o755))
		must(t, os.Symlink("/var/empty/python3", tools+"/dangling"))
		n.writeImages(map[string]any{shellImage: map[string]any{
			"entrypoint": []string{tools + "/tool"}, "mounts": []string{tools}, "user": "65532",
		}})
		n.start()
		p := n.pod()
		expect(t, "output", p.output(""), "it works\n")
		id, err := p.create("", func(c *runtimeapi.ContainerConfig) { c.Command = []string{tools + "/dangling"} })
		must(t, err)
		_, err = n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		if err == nil {
			t.Fatal("a link to nothing was started")
		}
		contains(t, err.Error(), "leads to /var/empty/python3, which the container does not see",
			`add that folder to the image's "mounts"`)
	})
}

func TestDevicesOfTheImageAreThereIfTheComputerHasThem(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.writeImages(map[string]any{shellImage: map[string]any{
			"entrypoint": []string{"sh"}, "devices": []string{"/dev/kms*", "/dev/no-such-device*", "/dev/net"},
		}})
		n.start()
		p := n.pod()
		text := p.output("ls /dev; ls -l /proc/self/fd | sed 's/.*> //'")
		contains(t, text, "kmsg\n", "null\n", "pts\n")
		lacks(t, text, "loop", "tty0", "no-such", "socket", "mnt:")
	})
}
