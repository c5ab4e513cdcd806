package main

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestTheUserIsTheOneAskedFor(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.writeImages(map[string]any{shellImage: map[string]any{"entrypoint": []string{"sh"}, "user": "65532"}})
		n.start()
		p := n.pod()
		contains(t, p.output("id; echo ok >$HOME/file && ls -ldn $HOME"), "uid=65532(nonroot) gid=0", "/home/nonroot")
		id := p.run("id; exec sleep 100", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1234}, &runtimeapi.Int64Value{Value: 5678}
			s.SupplementalGroups = []int64{77}
		}))
		text := string(n.exec(id, "id").Stdout)
		contains(t, text, "uid=1234", "gid=5678")
		user := n.status(id).User.Linux
		expect(t, "user in the status", user.Uid, 1234)
		if n.isRoot() {
			contains(t, text, "77")
			expect(t, "groups in the status", len(user.SupplementalGroups), 2)
		} else {
			expect(t, "groups in the status", len(user.SupplementalGroups), 1)
		}
	})
}

func TestFilesOfAnyUserCanBeMadeAndGivenAway(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		contains(t, n.pod().output("touch /tmp/f && chown 1234:5678 /tmp/f && echo given"), "given")
	})
}

func TestImageStatusTellsTheUserSoThatTheKubeletCanRefuseRoot(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.writeImages(map[string]any{
			"a": map[string]any{"user": "65532:100"}, "b": map[string]any{"user": "daemon"}, "c": map[string]any{},
		})
		n.start()
		image := func(name string) *runtimeapi.Image {
			answer, err := n.images.ImageStatus(n.context(), &runtimeapi.ImageStatusRequest{
				Image: &runtimeapi.ImageSpec{Image: name},
			})
			must(t, err)
			return answer.Image
		}
		expect(t, "a number", image("docker.io/library/a:latest").GetUid().GetValue(), 65532)
		expect(t, "a name", image("b").GetUsername(), "daemon")
		if uid := image("c").GetUid(); uid == nil || uid.Value != 0 {
			t.Errorf("none: %v, want root", uid)
		}
	})
}

// status fields of a process, from /proc/self/status.
func statusField(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func TestCapabilitiesAreTheDefaultOnesPlusAddedLessDropped(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		effective := func(add, drop []string) string {
			return statusField(p.output("cat /proc/self/status", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Capabilities = &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop}
			})), "CapEff")
		}
		for _, c := range []struct {
			add, drop []string
			want      string
		}{
			{nil, nil, "00000000a80425fb"}, // as in containerd and Docker
			{nil, []string{"ALL"}, "0000000000000000"},
			{[]string{"NET_ADMIN"}, []string{"ALL"}, "0000000000001000"},
			{[]string{"CAP_NET_ADMIN"}, []string{"net_raw"}, "00000000a80415fb"},
			{nil, []string{"CAP_CHOWN"}, "00000000a80425fa"},
		} {
			expect(t, strings.Join(append(c.add, c.drop...), " "), effective(c.add, c.drop), c.want)
		}
		if got := effective([]string{"ALL"}, nil); len(strings.Trim(got, "0")) < 10 {
			t.Errorf("all capabilities: %s", got)
		}
		if _, err := p.create("", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}}
		})); err == nil {
			t.Error("an unknown capability was accepted")
		}
	})
}

func TestAnOrdinaryContainerUserHasNoCapabilities(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		text := n.pod().output("cat /proc/self/status", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.NoNewPrivs = &runtimeapi.Int64Value{Value: 1234}, true
		}))
		expect(t, "effective", statusField(text, "CapEff"), "0000000000000000")
		expect(t, "permitted", statusField(text, "CapPrm"), "0000000000000000")
		expect(t, "no_new_privs", statusField(text, "NoNewPrivs"), "1")
	})
}

func TestTheDefaultFilterForbidsLeavingTheContainer(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		script := "unshare -m true && echo out; unshare -U true && echo out; grep Seccomp: /proc/self/status; echo fine"
		text := p.output(script, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		}))
		lacks(t, text, "out\n")
		contains(t, text, "Seccomp:\t2", "fine")
		if n.isRoot() {
			contains(t, p.output("grep Seccomp: /proc/self/status"), "Seccomp:\t0")
		}
	})
}

func TestASeccompProfileFileIsApplied(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		write := func(name, text string) string {
			must(t, os.WriteFile(n.dir+"/"+name, []byte(text), 0o644))
			return n.dir + "/" + name
		}
		good := write("good.json", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
			{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}`)
		unsupported := write("args.json", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
			{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0}]}]}`)
		n.start()
		p := n.pod()
		profile := func(path string) func(*runtimeapi.ContainerConfig) {
			return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}
			})
		}
		contains(t, p.output("mkdir /tmp/x", profile(good)), "No space left on device")
		if _, err := p.create("", profile(unsupported)); err == nil || !strings.Contains(err.Error(), "does not support") {
			t.Errorf("a profile with arguments: %v", err)
		}
	})
}

func TestDeviceFilesThatAContainerMakesDoNotOpen(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		volume := n.dir + "/node/volume"
		must(t, os.MkdirAll(volume, 0o777))
		n.start()
		text := n.pod().output("for d in /tmp /dev /dev/shm /volume /run; do mknod $d/made c 1 5; "+
			"head -c 1 $d/made && echo OPEN; done; head -c 1 /dev/zero && echo fine", func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/volume"}}
		})
		lacks(t, text, "OPEN")
		contains(t, text, "fine")
	})
}
