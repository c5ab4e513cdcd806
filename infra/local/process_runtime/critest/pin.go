// Package critest pins CRI's own validation suite, which tests/local/test_process_runtime_critest.py builds and runs:
//
//	go test -c -mod=readonly -o critest sigs.k8s.io/cri-tools/cmd/critest
package critest

import _ "sigs.k8s.io/cri-tools/pkg/validate" // the suite's specs, so that the module stays required
