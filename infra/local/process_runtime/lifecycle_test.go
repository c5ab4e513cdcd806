package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAContainerRunsToItsEndWithItsOutputInTheLog(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		id := p.run("echo to stdout; echo to stderr >&2; printf unfinished; exit 7")
		status := p.ended(id)
		expect(t, "exit code", status.ExitCode, 7)
		expect(t, "reason", status.Reason, "Error")
		text, err := os.ReadFile(status.LogPath)
		must(t, err)
		contains(t, string(text), " stdout F to stdout\n", " stderr F to stderr\n", " stdout F unfinished\n")
		expect(t, "reason of success", p.ended(p.run("true")).Reason, "Completed")
	})
}

func TestLongLinesAreLoggedInParts(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		id := p.run("head -c 40000 /dev/zero | tr '\\0' x; echo; echo end")
		text, err := os.ReadFile(p.ended(id).LogPath)
		must(t, err)
		expect(t, "parts", strings.Count(string(text), " stdout P x"), 2)
		expect(t, "x", strings.Count(string(text), "x"), 40000)
		contains(t, string(text), " stdout F end\n")
	})
}

func TestStoppingSendsTheSignalThenKills(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		polite := p.run("trap 'echo leaving; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
		deaf := p.run("trap '' TERM; echo ready; while :; do sleep 0.05; done")
		plain := p.run("exec sleep 100")
		eventually(t, "both are ready", func() bool {
			return strings.Contains(p.printed(polite), "ready") && strings.Contains(p.printed(deaf), "ready")
		})
		stop := func(id string, seconds int64) {
			_, err := n.runtime.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
			must(t, err)
		}
		stop(polite, 10)
		expect(t, "exit code of the polite one", n.status(polite).ExitCode, 3)
		contains(t, p.printed(polite), "leaving")
		stop(deaf, 1)
		expect(t, "exit code of the deaf one", n.status(deaf).ExitCode, 137)
		stop(plain, 10)
		expect(t, "exit code of one without a handler", n.status(plain).ExitCode, 143)
	})
}

func TestACommandThatIsNotThereIsAStartErrorThatSaysSo(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		id, err := p.create("", func(c *runtimeapi.ContainerConfig) { c.Command = []string{"no-such-program"} })
		must(t, err)
		_, err = n.runtime.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		if err == nil {
			t.Fatal("it started")
		}
		contains(t, err.Error(), `"no-such-program": executable file not found in $PATH`)
		status := n.status(id)
		expect(t, "exit code", status.ExitCode, 128)
		expect(t, "reason", status.Reason, "StartError")
	})
}

func TestAnUnknownImageIsExplained(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		_, err := n.images.PullImage(n.context(), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: "nginx:1.29"},
		})
		if err == nil {
			t.Fatal("it was pulled")
		}
		contains(t, err.Error(), `image "nginx:1.29" is not in this computer's image table (`+n.dir+`/node/images.json)`,
			"known images: "+shellImage)
	})
}

func TestExecGivesOutputAndExitCodeAndEndsAtItsLimit(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		id := n.pod().run("exec sleep 100")
		answer := n.exec(id, "sh", "-c", "echo out; echo err >&2; exit 5")
		expect(t, "output", string(answer.Stdout), "out\n")
		expect(t, "errors", string(answer.Stderr), "err\n")
		expect(t, "exit code", answer.ExitCode, 5)
		began := time.Now()
		_, err := n.runtime.ExecSync(n.context(), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Cmd: []string{"sh", "-c", "sleep 777 & wait"}, Timeout: 1,
		})
		if err == nil || time.Since(began) > patience {
			t.Errorf("no timely end at the limit: %v after %s", err, time.Since(began))
		}
		eventually(t, "its child is gone", func() bool {
			list := n.exec(id, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").Stdout
			return !strings.Contains(string(list), "sleep "+"777 ")
		})
	})
}

func TestAContainersEndTakesAllItsProcessesAlong(t *testing.T) {
	for _, mode := range []runtimeapi.NamespaceMode{
		runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			asEachUser(t, func(t *testing.T, n *testNode) {
				n.start()
				p := n.pod()
				mark := fmt.Sprintf("4%d", time.Now().UnixNano()%1e9)
				shared := func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = mode }
				// A daemon in a session of its own, two generations down.
				id := p.run("(setsid sh -c 'sleep "+mark+" & sleep "+mark+"' &) ; echo started; sleep 0.3; exit 0", shared)
				p.ended(id)
				expect(t, "processes after a normal end", len(processesWith(t, mark)), 0)
				id = p.run("(setsid sh -c 'sleep "+mark+" & sleep "+mark+"' &) ; sleep "+mark, shared)
				eventually(t, "they run", func() bool { return len(processesWith(t, "sleep\x00"+mark)) == 3 })
				_, err := n.runtime.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id})
				must(t, err)
				expect(t, "processes after a kill", len(processesWith(t, mark)), 0)
			})
		})
	}
}

func TestContainersOfAPodMaySeeEachOthersProcesses(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		shared := func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}
		first := p.run("exec sleep 98765", shared)
		list := "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
		contains(t, p.output(list, shared), "sleep 98765")
		lacks(t, p.output(list), "sleep 98765")
		contains(t, p.output(list, func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_TARGET, TargetId: first,
			}
		}), "sleep 98765")
	})
}

func TestTooMuchMemoryEndsAContainerAsOOMKilled(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		limit := func(bytes int64) func(c *runtimeapi.ContainerConfig) {
			return func(c *runtimeapi.ContainerConfig) {
				c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bytes}
			}
		}
		// A shell variable of 64 MB, in a child of the main process.
		hog := "sh -c 'x=$(head -c 64000000 /dev/zero | tr \"\\0\" x); sleep 100'; sleep 100"
		greedy, modest := p.run(hog, limit(40<<20)), p.run(hog, limit(1<<30))
		status := p.ended(greedy)
		expect(t, "reason", status.Reason, "OOMKilled")
		expect(t, "exit code", status.ExitCode, 137)
		expect(t, "the other's state", n.status(modest).State, runtimeapi.ContainerState_CONTAINER_RUNNING)
		eventually(t, "its statistics show what it uses", func() bool {
			answer, err := n.runtime.ContainerStats(n.context(), &runtimeapi.ContainerStatsRequest{ContainerId: modest})
			must(t, err)
			return answer.Stats.Memory.WorkingSetBytes.Value > 64<<20 && answer.Stats.Cpu.UsageCoreNanoSeconds.Value > 0
		})
	})
}

func TestALogThatWasMovedAwayIsOpenedAnew(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.start()
		p := n.pod()
		id := p.run("echo before; while ! [ -e /tmp/go ]; do sleep 0.02; done; echo after; exec sleep 100")
		eventually(t, "it has printed", func() bool { return p.printed(id) == "before\n" })
		path := n.status(id).LogPath
		must(t, os.Rename(path, path+".1"))
		_, err := n.runtime.ReopenContainerLog(n.context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		must(t, err)
		n.exec(id, "touch", "/tmp/go")
		eventually(t, "it goes on in the new file", func() bool { return p.printed(id) == "after\n" })
	})
}

func TestEachPodHasAnAddressThatIsFreedWithIt(t *testing.T) {
	asEachUser(t, func(t *testing.T, n *testNode) {
		n.config["podNetwork"] = "127.97.1.0/29" // .1 is the node's, .7 the broadcast address: five are left
		n.start()
		seen := map[string]string{}
		for range 5 {
			p := n.pod()
			answer, err := n.runtime.PodSandboxStatus(n.context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
			must(t, err)
			seen[answer.Status.Network.Ip] = p.id
		}
		expect(t, "different addresses", len(seen), 5)
		request := &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "one-too-many"},
		}}
		_, err := n.runtime.RunPodSandbox(n.context(), request)
		const explanation = "all addresses of the node's pod network 127.97.1.0/29 are in use"
		if err == nil || !strings.Contains(err.Error(), explanation) {
			t.Errorf("a sixth pod: %v", err)
		}
		remove := &runtimeapi.RemovePodSandboxRequest{PodSandboxId: seen["127.97.1.4"]}
		_, err = n.runtime.RemovePodSandbox(n.context(), remove)
		must(t, err)
		_, err = n.runtime.RunPodSandbox(n.context(), request)
		must(t, err)
	})
}
