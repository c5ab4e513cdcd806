package main

import (
	"os"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPod makes a pod, runs a program that ends at once, and removes the pod: what a pod costs besides its program.
// "ms-to-start" is the part from the first call until the program runs.
func BenchmarkPod(b *testing.B) {
	n := newTestNode(b, os.Geteuid())
	n.start()
	var started time.Duration
	for b.Loop() {
		began := time.Now()
		p := n.pod()
		id := p.run("exit 0")
		started += time.Since(began)
		n.ended(id)
		_, err := n.runtime.RemovePodSandbox(n.context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
		must(b, err)
	}
	b.ReportMetric(float64(started.Microseconds())/1000/float64(b.N), "ms-to-start/op")
}
