package seccomp

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// profile is a seccomp profile file as Docker and Kubernetes use it.
type profile struct {
	DefaultAction   string  `json:"defaultAction"`
	DefaultErrnoRet *uint32 `json:"defaultErrnoRet"`
	Syscalls        []struct {
		Name     string   `json:"name"`
		Names    []string `json:"names"`
		Action   string   `json:"action"`
		ErrnoRet *uint32  `json:"errnoRet"`
		Args     []any    `json:"args"`
		Includes map[string]any
		Excludes map[string]any
	} `json:"syscalls"`
}

// FromFile makes a filter of a profile file. Rules that look at arguments or depend on capabilities are refused: to
// apply half a rule would be worse than to say so.
func FromFile(path string) ([]unix.SockFilter, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the seccomp profile: %w", err)
	}
	var p profile
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("the seccomp profile %s is not valid: %w", path, err)
	}
	fallback, err := action(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, fmt.Errorf("the seccomp profile %s: %w", path, err)
	}
	var rules []rule
	for _, s := range p.Syscalls {
		if len(s.Args)+len(s.Includes)+len(s.Excludes) > 0 {
			return nil, fmt.Errorf("the seccomp profile %s has a rule with args, includes or excludes, which the process "+
				"runtime does not support", path)
		}
		what, err := action(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, fmt.Errorf("the seccomp profile %s: %w", path, err)
		}
		for _, name := range append(s.Names, s.Name) {
			// Calls that this architecture does not have cannot be made either.
			if number, known := calls[name]; known {
				rules = append(rules, rule{number, what})
			}
		}
	}
	return assemble(rules, fallback, fallback), nil
}

func action(name string, number *uint32) (uint32, error) {
	code := uint32(unix.EPERM)
	if number != nil {
		code = *number
	}
	switch strings.ToUpper(name) {
	case "SCMP_ACT_ALLOW":
		return actionAllow, nil
	case "SCMP_ACT_ERRNO":
		return errno(code), nil
	case "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS":
		return actionKill, nil
	case "SCMP_ACT_KILL_THREAD":
		return actionKillThread, nil
	case "SCMP_ACT_TRAP":
		return actionTrap, nil
	case "SCMP_ACT_LOG":
		return actionLog, nil
	}
	return 0, fmt.Errorf("unknown action %q", name)
}
