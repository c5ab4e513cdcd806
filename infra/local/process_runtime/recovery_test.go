package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pidOf finds the process of this node whose arguments hold a text.
func (n *testNode) pidOf(text string) int {
	n.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(n.t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), text) && strings.Contains(string(line), n.dir) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(n.t, err)
			return pid
		}
	}
	n.t.Fatalf("no process %q of %s", text, n.dir)
	return 0
}

func TestAKilledServerStartsAgainAndKnowsWhatItLost(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		mark := fmt.Sprintf("5%d", time.Now().UnixNano()%1e9)
		running, done := p.run("exec sleep "+mark), p.run("exit 3")
		p.ended(done)
		waiting, err := p.create("echo later")
		must(t, err)
		must(t, syscall.Kill(n.pidOf("\x00server\x00"), syscall.SIGKILL))
		eventually(t, "its containers are gone", func() bool { return len(processesWith(t, mark)) == 0 })
		n.waitUntilServing()
		status := n.status(running)
		expect(t, "state", status.State, runtimeapi.ContainerState_CONTAINER_EXITED)
		expect(t, "exit code", status.ExitCode, 137)
		expect(t, "reason", status.Reason, "RuntimeRestarted")
		expect(t, "exit code of the one that had ended", n.status(done).ExitCode, 3)
		// The pod is still there and takes new containers, and the one that was not started yet.
		contains(t, p.output("uname -n; echo y >/dev/shm/x"), "worker-0")
		_, err = n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: waiting})
		must(t, err)
		n.ended(waiting)
		expect(t, "output", p.printed(waiting), "later\n")
	})
}

func TestHalfWrittenRecordsAreCleanedAway(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		records := n.dir + "/node/runtime"
		for _, folder := range []string{"pods/torn", "containers/torn", "containers/empty"} {
			must(t, os.MkdirAll(records+"/"+folder, 0o700))
		}
		for _, file := range []string{"pods/torn", "containers/torn"} {
			must(t, os.WriteFile(records+"/"+file+"/record.json", []byte(`{"Config": {`), 0o600))
		}
		n.start()
		answer, err := n.runtime.ListContainers(n.context(), &runtimeapi.ListContainersRequest{})
		must(t, err)
		expect(t, "containers", len(answer.Containers), 0)
		left, err := filepath.Glob(records + "/*/*")
		must(t, err)
		expect(t, "records", len(left), 0)
	})
}

func TestNothingSurvivesAKilledNode(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		mark := fmt.Sprintf("6%d", time.Now().UnixNano()%1e9)
		p := n.pod()
		p.run("(setsid sleep " + mark + " &) ; exec sleep " + mark)
		p.run("exec sleep "+mark, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}))
		eventually(t, "they run", func() bool { return len(processesWith(t, "sleep\x00"+mark)) == 3 })
		must(t, n.process.Process.Kill())
		_ = n.wait()
		eventually(t, "all are gone", func() bool {
			return len(processesWith(t, mark)) == 0 && len(processesWith(t, n.dir)) == 0
		})
		n.start() // and the folder is free again
	})
}

func TestAStoppedNodeEndsItsContainersGently(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		id := p.run("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
		eventually(t, "it is ready", func() bool { return p.printed(id) == "ready\n" })
		path := n.status(id).LogPath
		must(t, n.stop())
		text, err := os.ReadFile(path)
		must(t, err)
		contains(t, string(text), "saved")
		expect(t, "processes left", len(processesWith(t, n.dir)), 0)
	})
}

func TestTwoNodesCannotShareAFolder(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		second := exec.Command(n.dir+"/process-runtime", "serve", "--config", n.dir+"/node/node.json")
		second.SysProcAttr = n.process.SysProcAttr
		output, err := second.CombinedOutput()
		if err == nil {
			t.Error("a second one started")
		}
		contains(t, string(output), "a node already runs in "+n.dir+"/node")
	})
}

// fakeKubelet says when it starts, and ends gently.
const fakeKubelet = "#!/bin/sh\nset -e\ntrap 'echo stopped >>%[1]s/kubelets; exit 0' TERM\n" +
	"mkdir -p /var/lib/kubelet/device-plugins /var/log/containers\n" +
	"echo started >>%[1]s/kubelets\nwhile :; do sleep 0.05; done\n"

func TestAKubeletThatDiesIsStartedAgainWhileContainersGoOn(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		kubelet := n.dir + "/kubelet"
		must(t, os.WriteFile(kubelet, fmt.Appendf(nil, fakeKubelet, n.dir), 0o755))
		n.command, n.config["kubelet"] = "node", []string{kubelet, "--flag"}
		n.start()
		kubelets := func() string {
			text, _ := os.ReadFile(n.dir + "/kubelets")
			return string(text)
		}
		eventually(t, "the kubelet runs", func() bool { return kubelets() == "started\n" })
		id := n.pod().run("exec sleep 1000")
		must(t, syscall.Kill(n.pidOf(kubelet+"\x00--flag"), syscall.SIGKILL))
		eventually(t, "it runs again", func() bool { return kubelets() == "started\nstarted\n" })
		expect(t, "the container", n.status(id).State, runtimeapi.ContainerState_CONTAINER_RUNNING)
		must(t, n.stop())
		expect(t, "its life", kubelets(), "started\nstarted\nstopped\n")
		for _, folder := range []string{"/var/lib/kubelet/device-plugins/prt", "/var/log/containers/prt"} {
			if _, err := os.Stat(folder); err == nil {
				t.Errorf("%s is on the computer", folder)
			}
		}
	})
}
