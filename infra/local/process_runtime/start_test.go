package main

import (
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPod makes a pod, runs a program that ends at once, and removes the pod: what a pod costs beyond its program.
func BenchmarkPod(b *testing.B) {
	n := newTestNode(b, os.Geteuid())
	n.start()
	b.ResetTimer()
	for range b.N {
		p := n.pod()
		id := p.run("exit 0")
		for n.status(id).State != runtimeapi.ContainerState_CONTAINER_EXITED {
		}
		_, err := n.runtime.RemovePodSandbox(n.context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
		must(b, err)
	}
}
