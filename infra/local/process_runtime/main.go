// Process-runtime is a Kubernetes container runtime (CRI) whose containers are processes of this computer, and the
// supervisor of a node built on it. It stands in for containerd on a computer without root, Docker or images; see
// docs/explanation/process-runtime.md for what that means.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"trainyard.dev/process-runtime/internal/config"
	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/cri"
	"trainyard.dev/process-runtime/internal/node"
)

const usage = `process-runtime: Kubernetes containers as processes of this computer

  process-runtime node --config node.json    run a node: the CRI server and the kubelet, until SIGTERM
  process-runtime serve --config node.json   run the CRI server alone, until SIGTERM
  process-runtime check [--json]             say whether this computer can do it (exit code 1: it cannot)
  process-runtime version
`

func init() { container.LockMainThread() }

func main() {
	log.SetFlags(log.Ldate | log.Ltime | log.LUTC)
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	code, err := run(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "process-runtime:", err)
	}
	os.Exit(code)
}

func run(command string, arguments []string) (int, error) {
	switch command {
	case "node", "serve":
		path, c, code, err := load(command, arguments)
		if err != nil || code != 0 {
			return code, err
		}
		if command == "node" {
			if err := c.CheckKubelet(); err != nil {
				return 2, fmt.Errorf("%s: %w", path, err)
			}
		}
		return node.Enter("--config", path, command)
	case "check":
		return check(arguments)
	case "version", "--version":
		fmt.Println(cri.RuntimeName, cri.Version)
		return 0, nil
	case "help", "-h", "--help":
		fmt.Print(usage)
		return 0, nil
	case node.InsideCommand:
		return inside(arguments)
	case node.ServerCommand:
		return server(arguments)
	case node.ProbeCommand:
		return exitCode(node.TryNamespaces())
	case container.PauseCommand:
		return container.Pause(), nil
	case container.InitCommand:
		return container.Init(), nil
	}
	fmt.Fprint(os.Stderr, usage)
	return 2, fmt.Errorf("no command %q", command)
}

func exitCode(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// load parses --config and reads the file.
func load(command string, arguments []string) (string, *config.Config, int, error) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	path := flags.String("config", "", "the node's configuration (node.json)")
	if err := flags.Parse(arguments); err != nil {
		return "", nil, 2, nil // the flag package has said why
	}
	if *path == "" {
		return "", nil, 2, fmt.Errorf("--config is missing: process-runtime %s --config node.json", command)
	}
	absolute, err := filepath.Abs(*path)
	if err != nil {
		return "", nil, 1, err
	}
	c, err := config.Load(absolute)
	if err != nil {
		return "", nil, 2, err
	}
	return absolute, c, 0, nil
}

// inside is a node's first process, in its namespaces.
func inside(arguments []string) (int, error) {
	if len(arguments) != 3 {
		return 2, fmt.Errorf("%s is an internal command", node.InsideCommand)
	}
	path, c, code, err := load(node.InsideCommand, arguments[:2])
	if err != nil || code != 0 {
		return code, err
	}
	return exitCode(node.Supervise(c, path, arguments[2] == "node"))
}

// server is the CRI server, in a node's namespaces.
func server(arguments []string) (int, error) {
	_, c, code, err := load(node.ServerCommand, arguments)
	if err != nil || code != 0 {
		return code, err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	s, err := cri.New(c)
	if err != nil {
		return 1, err
	}
	return exitCode(s.Serve(ctx))
}

// check reports how a node can be made on this computer.
func check(arguments []string) (int, error) {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print one JSON object")
	if err := flags.Parse(arguments); err != nil {
		return 2, nil
	}
	how, problem := node.Probe()
	code := 0
	message := fmt.Sprintf("ok: containers run as local processes (%s)", how)
	if problem != nil {
		code, message = 1, problem.Error()
	}
	if !*asJSON {
		fmt.Println(message)
		return code, nil
	}
	return code, writeJSON(os.Stdout, map[string]any{"ok": problem == nil, "how": how, "message": message})
}

func writeJSON(to io.Writer, value any) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
