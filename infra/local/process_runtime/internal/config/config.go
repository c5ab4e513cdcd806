// Package config reads a node's configuration file, the contract between `trainyard` (which writes it) and the runtime.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Config is one node.json.
type Config struct {
	// Name of the node, for messages.
	Name string `json:"name"`
	// Dir is the node's own folder; records and container files lie in <dir>/runtime.
	Dir string `json:"dir"`
	// Socket on which CRI is served.
	Socket string `json:"socket"`
	// PodNetwork is an IPv4 network inside 127.0.0.0/8. Its first address belongs to the node, pods get the others.
	PodNetwork netip.Prefix `json:"podNetwork"`
	// Images is the path of the image table.
	Images string `json:"images"`
	// StreamingAddress is the address on which exec, attach and port-forward are served (any free port).
	StreamingAddress string `json:"streamingAddress"`
	// Environment overrides variables in every container; it stands for addresses that a kube-proxy would route.
	Environment map[string]string `json:"environment"`
	// Hide lists folders that no container may see, apart from its own volumes below them.
	Hide []string `json:"hide"`
	// Kubelet is the command line of the node's kubelet; empty where only CRI is wanted.
	Kubelet []string `json:"kubelet"`
}

// Load reads and checks a node.json. Every mistake in the file is reported at once.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the node's configuration: %w", err)
	}
	c := &Config{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("%s is not a node configuration: %w", path, err)
	}
	if wrong := c.problems(); len(wrong) > 0 {
		return nil, fmt.Errorf("%s: %s", path, strings.Join(wrong, "; "))
	}
	return c, nil
}

func (c *Config) problems() []string {
	var wrong []string
	for _, f := range []struct{ key, value string }{
		{"dir", c.Dir}, {"socket", c.Socket}, {"images", c.Images},
	} {
		if !filepath.IsAbs(f.value) {
			wrong = append(wrong, fmt.Sprintf("%q must be an absolute path, not %q", f.key, f.value))
		}
	}
	if c.Name == "" {
		wrong = append(wrong, `"name" is missing`)
	}
	// A Unix socket's address has room for 108 bytes (unix(7)); longer paths fail with a message that names no reason.
	if len(c.Socket) > 107 {
		wrong = append(wrong, fmt.Sprintf(`"socket" has %d characters, but Unix allows 107: use a state folder with a shorter `+
			`path`, len(c.Socket)))
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	n := c.PodNetwork
	if !n.IsValid() || !loopback.Contains(n.Addr()) || n.Bits() < loopback.Bits() || n.Bits() > 30 {
		wrong = append(wrong, `"podNetwork" must be a network inside 127.0.0.0/8 with room for pods, `+
			`such as "127.77.3.0/24"`)
	}
	if a, err := netip.ParseAddr(c.StreamingAddress); err != nil || !a.IsLoopback() {
		wrong = append(wrong, `"streamingAddress" must be a loopback address, such as "127.77.3.1"`)
	}
	for _, p := range c.Hide {
		if !filepath.IsAbs(p) {
			wrong = append(wrong, fmt.Sprintf(`"hide" has %q, which is not an absolute path`, p))
		}
	}
	return wrong
}

// RuntimeDir is where the runtime keeps records and the containers' own files.
func (c *Config) RuntimeDir() string { return filepath.Join(c.Dir, "runtime") }

// Hidden returns all folders that containers may not see: the listed ones, the node's folder, and the folder of the
// image table where that is the state folder which holds the node's (it holds the cluster's keys).
func (c *Config) Hidden() []string {
	hidden := append([]string{}, c.Hide...)
	state := filepath.Dir(c.Images)
	if rel, err := filepath.Rel(state, c.Dir); err == nil && state != "/" && !strings.HasPrefix(rel, "..") {
		return append(hidden, state)
	}
	return append(hidden, c.Dir)
}

// CheckKubelet says what is wrong with the kubelet's command line, without which a node is none.
func (c *Config) CheckKubelet() error {
	if len(c.Kubelet) == 0 {
		return errors.New(`"kubelet" is missing; to serve CRI alone, use: process-runtime serve`)
	}
	if _, err := exec.LookPath(c.Kubelet[0]); err != nil || !filepath.IsAbs(c.Kubelet[0]) {
		return fmt.Errorf(`"kubelet" must begin with the absolute path of a program, not %q`, c.Kubelet[0])
	}
	return nil
}
