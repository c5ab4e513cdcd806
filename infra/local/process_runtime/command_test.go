package main

import (
	"encoding/json"
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"trainyard.dev/process-runtime/internal/seccomp"
)

// command runs the program and gives what it printed and its exit code.
func command(t *testing.T, arguments ...string) (string, int) {
	t.Helper()
	output, err := exec.Command("/proc/self/exe", arguments...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return string(output), exit.ExitCode()
	}
	return string(output), 0
}

func TestCheckSaysHowContainersAreMadeHere(t *testing.T) {
	text, code := command(t, "check")
	expect(t, "exit code", code, 0)
	contains(t, text, "ok: containers run as local processes")
	text, _ = command(t, "check", "--json")
	var answer struct {
		OK           bool
		How, Message string
	}
	must(t, json.Unmarshal([]byte(text), &answer))
	if !answer.OK || answer.How == "" || answer.Message == "" {
		t.Errorf("got %+v", answer)
	}
}

func TestWhereNamespacesAreForbiddenCheckNamesTheAlternative(t *testing.T) {
	type result struct {
		text string
		code int
	}
	done := make(chan result)
	go func() {
		// The default filter forbids namespaces, as some computers and most containers do. The thread keeps it and ends.
		runtime.LockOSThread()
		err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), seccomp.Load(seccomp.Default(false, false)))
		if err != nil {
			done <- result{err.Error(), -1}
			return
		}
		text, code := command(t, "check")
		done <- result{text, code}
	}()
	r := <-done
	expect(t, "exit code", r.code, 1)
	contains(t, r.text, "does not let processes have namespaces of their own", "operation not permitted",
		"kubeconfig of kind, k3d or any cluster")
}

func TestMistakesOnTheCommandLineArePlain(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		part      string
	}{
		{[]string{"node"}, "--config is missing: process-runtime node --config node.json"},
		{
			[]string{"serve", "--config", "/no/such/node.json"},
			"cannot read the node's configuration: open /no/such/node.json",
		},
		{[]string{"serve", "--config", "/etc/passwd"}, "/etc/passwd is not a node configuration"},
		{[]string{"fly"}, `no command "fly"`},
	} {
		text, code := command(t, c.arguments...)
		contains(t, text, c.part)
		expect(t, "exit code", code, 2)
		lacks(t, text, "goroutine")
	}
	text, code := command(t, "version")
	expect(t, "exit code of version", code, 0)
	contains(t, text, "trainyard-process 0.1.0")
}
