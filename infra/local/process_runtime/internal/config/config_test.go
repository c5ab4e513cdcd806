package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

const good = `{"name": "n", "dir": "/state/nodes/n", "socket": "/state/nodes/n/cri.sock", "podNetwork": "127.77.3.0/24",
	"images": "/state/images.json", "streamingAddress": "127.77.3.1", "hide": ["/secret"]}`

func TestAGoodConfigurationHidesTheStateFolder(t *testing.T) {
	c, err := load(t, good)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Hidden(), []string{"/secret", "/state"}) {
		t.Errorf("hidden: %v", c.Hidden())
	}
}

func TestAnImageTableElsewhereHidesTheNodesFolderOnly(t *testing.T) {
	c, err := load(t, strings.Replace(good, "/state/images.json", "/usr/share/images.json", 1))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Hidden(), []string{"/secret", "/state/nodes/n"}) {
		t.Errorf("hidden: %v", c.Hidden())
	}
}

func TestAllMistakesAreToldTogether(t *testing.T) {
	_, err := load(t, `{"dir": "nodes/n", "socket": "/`+strings.Repeat("x", 107)+`", "podNetwork": "10.0.0.0/24",
		"images": "/i", "streamingAddress": "0.0.0.0", "hide": ["x"]}`)
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, part := range []string{
		`"dir" must be an absolute path, not "nodes/n"`, `"name" is missing`, `"socket" has 108 characters`,
		`"podNetwork" must be a network inside 127.0.0.0/8`, `"streamingAddress" must be a loopback address`, `"hide" has "x"`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}

func TestAnUnknownKeyIsAMistake(t *testing.T) {
	if _, err := load(t, `{"nmae": "n"}`); err == nil || !strings.Contains(err.Error(), `unknown field "nmae"`) {
		t.Errorf("got %v", err)
	}
}

func TestTheKubeletMustBeAProgram(t *testing.T) {
	for command, part := range map[string]string{
		"": `"kubelet" is missing`, "sh": "absolute path", "/no/such/kubelet": `not "/no/such/kubelet"`, "/etc/passwd": "program",
	} {
		c := &Config{}
		if command != "" {
			c.Kubelet = []string{command}
		}
		if err := c.CheckKubelet(); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v", command, err)
		}
	}
	if err := (&Config{Kubelet: []string{"/bin/sh", "-c"}}).CheckKubelet(); err != nil {
		t.Error(err)
	}
}
