package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// storedImage is an image with content.
const storedImage = "test/stored:1"

// absolute is a path in a text, such as ldd's answer.
var absolute = regexp.MustCompile(`/\S+`)

// rootfs makes a small root file system of this computer's own programs, and more files by their paths. A text that
// begins with "-> " makes a link.
func (n *testNode) rootfs(more map[string]string) string {
	n.t.Helper()
	root := n.dir + "/store/rootfs"
	copied := func(path string) {
		text, err := os.ReadFile(path)
		must(n.t, err)
		must(n.t, os.MkdirAll(root+filepath.Dir(path), 0o755))
		must(n.t, os.WriteFile(root+path, text, 0o755))
	}
	for _, name := range []string{"sh", "cat", "ls", "id", "env", "sleep", "rm", "mkdir", "touch", "chmod", "head", "mknod"} {
		program, err := exec.LookPath(name)
		must(n.t, err)
		libraries, err := exec.Command("ldd", program).Output()
		must(n.t, err)
		for _, library := range absolute.FindAllString(string(libraries), -1) {
			copied(library)
		}
		text, err := os.ReadFile(program)
		must(n.t, err)
		must(n.t, os.MkdirAll(root+"/tools", 0o755))
		must(n.t, os.WriteFile(root+"/tools/"+name, text, 0o755))
	}
	files := map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/tools/sh\nrunner:x:65532:65533::/workspace:/tools/sh\n",
		"/etc/group":  "root:x:0:\nrunners:x:65533:\nvideo:x:44:other,runner\n",
		"/etc/made":   "of the image\n", "/workspace/data": "data\n", "/tmp/.keep": "",
	}
	for path, text := range more {
		files[path] = text
	}
	for path, text := range files {
		must(n.t, os.MkdirAll(filepath.Dir(root+path), 0o755))
		if to, link := strings.CutPrefix(text, "-> "); link {
			must(n.t, os.Symlink(to, root+path))
		} else {
			must(n.t, os.WriteFile(root+path, []byte(text), 0o644))
		}
	}
	must(n.t, os.Chmod(root+"/tmp", 0o1777))
	return root
}

// startStored starts a node that has an image with content; change is made to its entry.
func (n *testNode) startStored(root string, change map[string]any) {
	n.t.Helper()
	entry := map[string]any{
		"rootfs": root, "entrypoint": []string{"sh"}, "environment": map[string]string{"PATH": "/tools", "FROM": "image"},
		"workingDir": "/workspace", "user": "runner", "digest": "sha256:" + strings.Repeat("ab", 32),
	}
	for key, value := range change {
		entry[key] = value
	}
	n.writeImages(map[string]any{storedImage: entry, shellImage: map[string]any{"entrypoint": []string{"sh"}}})
	n.start()
}

// stored makes a container one of the image with content.
func stored(c *runtimeapi.ContainerConfig) { c.Image.Image = storedImage }

// mounted adds a volume.
func mounted(source, target string) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: source, ContainerPath: target})
	}
}

func asRoot(c *runtimeapi.ContainerConfig) {
	c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 0}
}

func TestAContainerOfAnImageWithContentSeesItInPlaceOfTheComputer(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		must(t, os.WriteFile(n.dir+"/secret", []byte("secret\n"), 0o644))
		must(t, os.Mkdir(n.dir+"/shown", 0o755))
		must(t, os.WriteFile(n.dir+"/shown/library", []byte("library\n"), 0o644))
		n.startStored(n.rootfs(nil), map[string]any{
			"mounts": []string{n.dir + "/shown"}, "devices": []string{"/dev/kms*"},
		})
		id := n.pod().run("ls -1 / /etc /usr/bin /dev; cat data "+n.dir+"/shown/library "+n.dir+"/secret; id; env; sleep 99",
			stored)
		eventually(t, "it has printed all", func() bool { return strings.Contains(n.printed(id), "FROM=image") })
		text := n.printed(id)
		contains(t, text, "made\n", "hostname\n", "resolv.conf\n", "data\n", "library\n", "kmsg\n", "null\n",
			"secret: No such file", "'/usr/bin': No such file", "uid=65532(runner) gid=65533(runners)", "HOME=/workspace\n",
			"HOSTNAME=worker-0\n", "PATH=/tools\n")
		lacks(t, text, "os-release", "home\n", "secret\n")
		if n.isRoot() {
			contains(t, text, "44(video)")
		}
		contains(t, string(n.exec(id, "cat", "/etc/made").Stdout), "of the image")
		// The computer's programs are as ever for the other images.
		contains(t, n.pod().output("ls /usr/bin"), "env\n")
	})
}

func TestWhatAContainerChangesIsItsOwnAndGoesWithIt(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		root := n.rootfs(map[string]string{"/deep/a/b/c": "deep\n"})
		must(t, os.Chmod(root+"/deep/a", 0o555))
		n.startStored(root, nil)
		p := n.pod()
		script := "cat /etc/made; rm -r /workspace /deep; echo changed >/etc/made; echo new >/new; mkdir /workspace; " +
			"ls /workspace; cat /etc/made /new"
		first := p.run(script+"; exec sleep 99", stored, asRoot)
		eventually(t, "the first one has changed it", func() bool { return strings.Contains(n.printed(first), "new") })
		expect(t, "what the first one sees", n.printed(first), "of the image\nchanged\nnew\n")
		expect(t, "what the second one sees", p.output(script+"; chmod 0 /workspace", stored, asRoot),
			"of the image\nchanged\nnew\n")
		for path, want := range map[string]string{"/etc/made": "of the image\n", "/deep/a/b/c": "deep\n"} {
			text, err := os.ReadFile(root + path)
			must(t, err)
			expect(t, "the image's "+path, string(text), want)
		}
		if _, err := os.Lstat(root + "/new"); err == nil {
			t.Error("the image has a new file")
		}
		_, err := n.runtime.RemoveContainer(n.context(), &runtimeapi.RemoveContainerRequest{ContainerId: first})
		must(t, err)
		left, err := filepath.Glob(n.dir + "/node/runtime/containers/" + first)
		must(t, err)
		expect(t, "folders of the first one", len(left), 0)
	})
}

func TestTheUserCanRemoveWhatContainersOfImagesLeftBehind(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.startStored(n.rootfs(nil), nil)
		n.pod().output("rm -r /workspace; echo x >/etc/made", stored, asRoot)
		must(t, n.stop())
		remove := exec.Command("rm", "-r", n.dir+"/node/runtime")
		remove.SysProcAttr = &syscall.SysProcAttr{}
		if n.user != os.Geteuid() {
			remove.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(n.user), Gid: uint32(n.user)}
		}
		if output, err := remove.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
}

func TestWhatAPodBringsIsLaidOverItsImage(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		volume := n.dir + "/node/volume"
		must(t, os.MkdirAll(volume, 0o777))
		must(t, os.WriteFile(volume+"/token", []byte("token\n"), 0o644))
		n.startStored(n.rootfs(map[string]string{"/var/run": "-> /run", "/run/x": ""}), nil)
		p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.1.2.3"}}
		})
		volumes := func(c *runtimeapi.ContainerConfig) {
			for _, target := range []string{"/var/run/secrets/kubernetes.io", "/new/place", "/etc/made"} {
				source := volume
				if target == "/etc/made" {
					source += "/token"
				}
				c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: source, ContainerPath: target})
			}
		}
		script := "cat /run/secrets/kubernetes.io/token /new/place/token /etc/made /etc/hostname /etc/resolv.conf; " +
			"echo shared >/dev/shm/file && cat /dev/shm/file; head -c 1 /dev/zero >/dev/null && echo dev; " +
			"read x </proc/1/comm && echo proc; echo x >/new/place/written && echo written; echo x >/new/file && echo also"
		want := "token\ntoken\ntoken\nworker-0\nnameserver 10.1.2.3\nshared\ndev\nproc\nwritten\n"
		expect(t, "all of it", p.output(script, stored, asRoot, volumes), want+"also\n")
		// One stream, for two have no order between them.
		text := p.output("exec 2>&1; "+script, stored, asRoot, volumes, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.ReadonlyRootfs = true
		}))
		contains(t, text, want, "/new/file: Read-only file system")
		expect(t, "its memory files", p.output("cat /dev/shm/file", stored), "shared\n")
		lacks(t, p.output("echo $HOME; cat /etc/made", stored), "token")
	})
}

func TestLinksOfAnImageLeadNowhereOutsideIt(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		outside := n.dir + "/outside"
		must(t, os.MkdirAll(outside+"/dev", 0o777))
		must(t, os.WriteFile(outside+"/passwd", []byte("intruder:x:1:1::/:/tools/sh\n"), 0o644))
		up := strings.Repeat("../", 20)
		n.startStored(n.rootfs(map[string]string{
			"/proc": "-> " + up + outside + "/proc", "/dev": "-> " + outside + "/dev", "/sys": "-> " + up + "../elsewhere",
			"/etc/resolv.conf": "-> " + up + outside + "/resolv.conf", "/etc/names": "-> " + up + outside + "/passwd",
		}), nil)
		p := n.pod()
		expect(t, "the kernel's files, by the links", p.output("read x </proc/1/comm && echo proc >/dev/null && echo fine; "+
			"cat "+outside+"/passwd 2>/dev/null; cat /etc/names 2>/dev/null; cat /etc/resolv.conf >/dev/null && "+
			"echo name server", stored, asRoot), "fine\nname server\n")
		for _, name := range []string{"/proc", "/sys", "/resolv.conf", "/dev/null"} {
			if _, err := os.Lstat(outside + name); err == nil {
				t.Errorf("%s was made outside of the image", name)
			}
		}
		must(t, os.Remove(n.dir+"/store/rootfs/etc/passwd"))
		must(t, os.Symlink(up+outside+"/passwd", n.dir+"/store/rootfs/etc/passwd"))
		_, err := p.create("", stored, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUsername = "intruder"
		}))
		if err == nil || !strings.Contains(err.Error(), `no user "intruder" in the image`) {
			t.Errorf("a user of the computer's file: %v", err)
		}
	})
}

func TestAVolumeAtALinkOfAnImageStaysInsideIt(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		outside, volume := n.dir+"/outside", n.dir+"/volume"
		for _, folder := range []string{outside, volume} {
			must(t, os.Mkdir(folder, 0o777))
			must(t, os.WriteFile(folder+"/whose", []byte(filepath.Base(folder)+"\n"), 0o644))
		}
		up := strings.Repeat("../", 20)
		n.startStored(n.rootfs(map[string]string{
			"/absolute": "-> " + outside, "/relative": "-> " + up + outside, "/twice": "-> /relative/below",
		}), nil)
		p := n.pod()
		for _, target := range []string{"/absolute", "/relative", "/twice", "/absolute/new"} {
			script := "cat " + target + "/whose; echo written >" + target + "/file; ls " + outside
			text := p.output(script, stored, asRoot, mounted(volume, target))
			contains(t, text, "volume\n")
			lacks(t, text, "outside\n")
		}
		left, err := filepath.Glob(outside + "/*")
		must(t, err)
		expect(t, "what is outside", strings.Join(left, " "), outside+"/whose")
	})
}

func TestNothingIsMountedOverTheRootOfAnImage(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		volume := n.dir + "/volume"
		must(t, os.Mkdir(volume, 0o777))
		root := n.rootfs(map[string]string{"/data": "-> /", "/work": "-> .."})
		n.startStored(root, map[string]any{"workingDir": "/work"})
		p := n.pod()
		contains(t, p.output("pwd; ls data/etc", stored), "/\n", "made\n")
		refused := func(what string, change ...func(*runtimeapi.ContainerConfig)) {
			t.Helper()
			id, err := p.create("", append(change, stored)...)
			must(t, err)
			_, err = n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: id})
			if err == nil || !strings.Contains(err.Error(), what+" leads to the root of the container's files") {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("/data", mounted(volume, "/data"))
		refused("/", mounted(volume, "/"))
		for _, folder := range []string{"/proc", "/sys", "/dev"} {
			must(t, os.Symlink("/", root+folder))
			refused(folder)
			must(t, os.Remove(root+folder))
		}
	})
}

func TestAnImageWithoutUsersRunsByNumber(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		root := n.rootfs(nil)
		must(t, os.Remove(root+"/etc/passwd"))
		must(t, os.Remove(root+"/etc/group"))
		n.startStored(root, map[string]any{"user": "1000:1001"})
		p := n.pod()
		contains(t, p.output("id; echo $HOME", stored), "uid=1000 gid=1001", "/\n")
		_, err := p.create("", stored, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUsername = "runner"
		}))
		if err == nil || !strings.Contains(err.Error(), `no user "runner" in the image`) {
			t.Errorf("a name: %v", err)
		}
	})
}

func TestAContainerWhoseImageIsTakenAwayCanBeEnded(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		root := n.rootfs(nil)
		n.startStored(root, nil)
		// The shell alone: a program that it would start after that word could be gone already.
		id := n.pod().run("echo ready; while :; do :; done", stored)
		eventually(t, "it is ready", func() bool { return strings.Contains(n.printed(id), "ready") })
		must(t, os.RemoveAll(root))
		n.writeImages(map[string]any{shellImage: map[string]any{"entrypoint": []string{"sh"}}})
		_, err := n.runtime.ExecSync(n.context(), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Cmd: []string{"ls"}, Timeout: 10,
		})
		if err == nil || !strings.Contains(err.Error(), `"ls": executable file not found`) {
			t.Errorf("a program that is gone: %v", err)
		}
		_, err = n.runtime.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1})
		must(t, err)
		n.ended(id)
		_, err = n.runtime.RemoveContainer(n.context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		must(t, err)
	})
}

func TestAnImageWithoutItsContentIsAPlainError(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		root := n.rootfs(map[string]string{"/tools/dangling": "-> /opt/python"})
		n.startStored(root, nil)
		p := n.pod()
		created, err := p.create("", stored)
		must(t, err)
		dangling, err := p.create("", stored, func(c *runtimeapi.ContainerConfig) { c.Command = []string{"dangling"} })
		must(t, err)
		_, err = n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: dangling})
		if err == nil || !strings.Contains(err.Error(), "/tools/dangling leads to /opt/python, which the image lacks") {
			t.Errorf("a link to nothing: %v", err)
		}
		must(t, os.Rename(root, root+".moved"))
		pull := func() error {
			image := &runtimeapi.ImageSpec{Image: storedImage}
			_, err := n.images.PullImage(n.context(), &runtimeapi.PullImageRequest{Image: image})
			return err
		}
		create := func() error { _, err := p.create("", stored); return err }
		start := func() error {
			_, err := n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: created})
			return err
		}
		gone := root + " is gone; load it again: trainyard images load ARCHIVE"
		for what, attempt := range map[string]func() error{"pull": pull, "create": create, "start": start} {
			if err := attempt(); err == nil || !strings.Contains(err.Error(), gone) {
				t.Errorf("%s: %v", what, err)
			}
		}
		must(t, os.Mkdir(root, 0o755))
		if err := pull(); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("an empty folder: %v", err)
		}
		must(t, os.Remove(root))
		must(t, os.Rename(root+".moved", root))
		must(t, pull())
		contains(t, p.output("cat /etc/made", stored), "of the image")
	})
}

func TestDeviceFilesInAnImageDoNotOpen(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		root := n.rootfs(nil)
		if os.Geteuid() == 0 {
			must(t, unix.Mknod(root+"/stored", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
		}
		n.startStored(root, nil)
		text := n.pod().output("mknod /made c 1 5; head -c 1 /made && echo OPEN; head -c 1 /stored && echo OPEN; "+
			"head -c 1 /dev/zero >/dev/null && echo fine", stored, asRoot)
		lacks(t, text, "OPEN")
		contains(t, text, "fine")
	})
}

func TestTheStopSignalIsTheImages(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.startStored(n.rootfs(nil), map[string]any{"stopSignal": "SIGINT"})
		id := n.pod().run("trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.1; done", stored)
		eventually(t, "it is ready", func() bool { return strings.Contains(n.printed(id), "ready") })
		_, err := n.runtime.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 10})
		must(t, err)
		expect(t, "exit code", n.ended(id).ExitCode, 7)
	})
}

func TestWhereTheDiskCannotHoldALayerItIsKeptInMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can make such a disk here; the same code serves both")
		return
	}
	n := newTestNode(t, 0)
	root := n.rootfs(nil)
	// As in a container of another runtime: the node's disk is an overlay itself.
	for _, dir := range []string{"lower", "upper", "work", "node"} {
		must(t, os.MkdirAll(n.dir+"/"+dir, 0o755))
	}
	must(t, unix.Mount("overlay", n.dir+"/node", "overlay", 0,
		"lowerdir="+n.dir+"/lower,upperdir="+n.dir+"/upper,workdir="+n.dir+"/work"))
	t.Cleanup(func() {
		_ = n.stop()
		must(t, unix.Unmount(n.dir+"/node", unix.MNT_DETACH))
	})
	n.startStored(root, nil)
	expect(t, "what it sees", n.pod().output("echo changed >/etc/made; cat /etc/made data", stored, asRoot),
		"changed\ndata\n")
}
