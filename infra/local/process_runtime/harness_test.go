package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ordinaryUser is who stands for any user without rights when the tests run as root.
const ordinaryUser = 65534

// TestMain lets the test binary be the runtime too: the runtime starts itself again under its own name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
	}
	os.Exit(m.Run())
}

// asEachUser runs a test against a runtime of root (where the tests run as root) and of an ordinary user.
func asEachUser(t *testing.T, test func(t *testing.T, n *testNode)) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Run("root", func(t *testing.T) { test(t, newTestNode(t, 0)) })
		t.Run("ordinary user", func(t *testing.T) { test(t, newTestNode(t, ordinaryUser)) })
		return
	}
	t.Run("ordinary user", func(t *testing.T) { test(t, newTestNode(t, os.Geteuid())) })
}

// testNode is a node of the test: its folder, its process and a connection to it.
type testNode struct {
	t       testing.TB
	user    int
	dir     string
	command string // "serve" or "node"
	config  map[string]any
	process *exec.Cmd
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	log     *os.File
}

// shellImage is what most tests run; its user may be set by the container.
const shellImage = "test/shell:local"

func newTestNode(t testing.TB, user int) *testNode {
	t.Helper()
	// Not t.TempDir: other users may not enter it, and its long path leaves no room for a socket's name.
	dir, err := os.MkdirTemp("", "prt-")
	must(t, err)
	n := &testNode{t: t, user: user, dir: dir, command: "serve"}
	t.Cleanup(func() {
		n.stop()
		text, err := os.ReadFile(n.log.Name())
		must(t, err)
		if strings.Contains(string(text), "DATA RACE") || strings.Contains(string(text), "panic:") {
			t.Error("the runtime itself failed")
		}
		if t.Failed() {
			t.Logf("the runtime's log:\n%s", text)
		}
		must(t, os.RemoveAll(dir))
	})
	program, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(dir+"/process-runtime", program, 0o755))
	n.log, err = os.Create(dir + "/log")
	must(t, err)
	n.writeImages(map[string]any{shellImage: map[string]any{
		"entrypoint": []string{"sh"}, "environment": map[string]string{"FROM_IMAGE": "image", "BOTH": "image"},
	}})
	n.config = map[string]any{
		"name": "n", "dir": dir + "/node", "socket": dir + "/node/cri.sock", "podNetwork": "127.97.1.0/24",
		"images": dir + "/node/images.json", "streamingAddress": "127.97.1.1",
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *testNode) writeImages(images map[string]any) {
	n.t.Helper()
	must(n.t, os.MkdirAll(n.dir+"/node", 0o755))
	text, err := json.Marshal(map[string]any{"images": images})
	must(n.t, err)
	must(n.t, os.WriteFile(n.dir+"/node/images.json", text, 0o644))
}

// start starts the node's process and waits until CRI answers.
func (n *testNode) start(environment ...string) {
	n.t.Helper()
	text, err := json.Marshal(n.config)
	must(n.t, err)
	must(n.t, os.WriteFile(n.dir+"/node/node.json", text, 0o644))
	n.process = exec.Command(n.dir+"/process-runtime", n.command, "--config", n.dir+"/node/node.json")
	// With -race every process would wait a second at its end.
	n.process.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}, environment...)
	n.process.Stdout, n.process.Stderr = n.log, n.log
	if n.user != os.Geteuid() {
		must(n.t, filepath.Walk(n.dir, func(path string, _ os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, n.user, n.user)
		}))
		n.process.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(n.user), Gid: uint32(n.user)},
		}
	}
	must(n.t, n.process.Start())
	connection, err := grpc.NewClient("unix://"+n.dir+"/node/cri.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: time.Second,
			Backoff: backoff.Config{
				BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond,
			},
		}))
	must(n.t, err)
	n.t.Cleanup(func() { _ = connection.Close() })
	n.runtime, n.images = runtimeapi.NewRuntimeServiceClient(connection), runtimeapi.NewImageServiceClient(connection)
	n.waitUntilServing()
}

func (n *testNode) waitUntilServing() {
	n.t.Helper()
	eventually(n.t, "CRI answers", func() bool {
		_, err := n.runtime.Version(n.context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
}

func (n *testNode) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	n.t.Cleanup(cancel)
	return ctx
}

// stop ends the node gracefully, and returns how.
func (n *testNode) stop() error {
	if n.process == nil {
		return nil
	}
	_ = n.process.Process.Signal(syscall.SIGTERM)
	return n.wait()
}

func (n *testNode) wait() error {
	process := n.process
	n.process = nil
	done := make(chan error, 1)
	go func() { done <- process.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		_ = process.Process.Kill()
		return fmt.Errorf("the node did not end: %w", <-done)
	}
}

// patience is how long a busy computer may take for anything; a wait ends as soon as what it waits for is there.
const patience = 120 * time.Second

// eventually waits for something that takes its time.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("it never came true that %s", what)
}

// testPod is a pod of the test.
type testPod struct {
	*testNode
	id     string
	config *runtimeapi.PodSandboxConfig
}

func (n *testNode) pod(change ...func(*runtimeapi.PodSandboxConfig)) *testPod {
	n.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Uid: "uid", Namespace: "default"}, Hostname: "worker-0",
		LogDirectory: n.dir + "/logs", Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	for _, c := range change {
		c(config)
	}
	answer, err := n.runtime.RunPodSandbox(n.context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	must(n.t, err)
	return &testPod{n, answer.PodSandboxId, config}
}

// create makes a container that runs a shell script as root, unless changed.
func (p *testPod) create(script string, change ...func(*runtimeapi.ContainerConfig)) (string, error) {
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: shellImage},
		Args:    []string{"-c", script},
		LogPath: fmt.Sprintf("c-%d.log", time.Now().UnixNano()),
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	for _, c := range change {
		c(config)
	}
	answer, err := p.runtime.CreateContainer(p.context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.id, Config: config, SandboxConfig: p.config,
	})
	return answer.GetContainerId(), err
}

// run starts a container and gives its ID.
func (p *testPod) run(script string, change ...func(*runtimeapi.ContainerConfig)) string {
	p.t.Helper()
	id, err := p.create(script, change...)
	must(p.t, err)
	_, err = p.runtime.StartContainer(p.context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	must(p.t, err)
	return id
}

func (n *testNode) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	answer, err := n.runtime.ContainerStatus(n.context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	must(n.t, err)
	return answer.Status
}

// ended waits for a container's end.
func (n *testNode) ended(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	eventually(n.t, "the container ends", func() bool {
		return n.status(id).State == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return n.status(id)
}

// output runs a script to its end and gives what it printed, both streams mixed.
func (p *testPod) output(script string, change ...func(*runtimeapi.ContainerConfig)) string {
	p.t.Helper()
	id := p.run(script, change...)
	p.ended(id)
	return p.printed(id)
}

// printed reads a container's log without its decoration.
func (n *testNode) printed(id string) string {
	n.t.Helper()
	text, err := os.ReadFile(n.status(id).LogPath)
	must(n.t, err)
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) == 4 {
			b.WriteString(fields[3])
		}
	}
	return b.String()
}

// exec runs a command in a container.
func (n *testNode) exec(id string, command ...string) *runtimeapi.ExecSyncResponse {
	n.t.Helper()
	answer, err := n.runtime.ExecSync(n.context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: command, Timeout: 10,
	})
	must(n.t, err)
	return answer
}

func (n *testNode) isRoot() bool { return n.user == 0 }

// processes lists the command lines of all processes of this computer that hold a text.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var found []string
	own := fmt.Sprintf("/proc/%d/cmdline", os.Getpid())
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && file != own && strings.Contains(string(line), text) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%q should not be in:\n%s", part, text)
		}
	}
}
