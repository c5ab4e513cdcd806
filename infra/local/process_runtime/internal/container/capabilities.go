package container

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// capabilityNames in the order of their numbers (linux/capability.h).
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE",
	"SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
	"SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
	"WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// defaultCapabilities are what containerd and Docker give when nothing is said.
var defaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
	"NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

// LastCapability is the highest capability that this kernel knows.
func LastCapability() int {
	text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return n
		}
	}
	return len(capabilityNames) - 1
}

// Capabilities gives the numbers of what a container may have: the default, less drop, plus add. "ALL" stands for all.
func Capabilities(privileged bool, add, drop []string) ([]uintptr, error) {
	have := map[string]bool{}
	set := func(names []string, value bool) {
		for _, n := range names {
			have[n] = value
		}
	}
	set(defaultCapabilities, true)
	if privileged {
		set(capabilityNames, true)
	}
	apply := func(names []string, value bool) error {
		for _, n := range names {
			n = strings.TrimPrefix(strings.ToUpper(n), "CAP_")
			if n == "ALL" {
				set(capabilityNames, value)
			} else if number(n) < 0 {
				return fmt.Errorf("unknown capability %q", n)
			}
		}
		for _, n := range names {
			if n = strings.TrimPrefix(strings.ToUpper(n), "CAP_"); n != "ALL" {
				set([]string{n}, value)
			}
		}
		return nil
	}
	// ALL first, single names after it, so that "drop ALL, add X" and "add ALL, drop X" mean what they say.
	all := func(names []string) (rest []string, found bool) {
		for _, n := range names {
			if strings.EqualFold(strings.TrimPrefix(strings.ToUpper(n), "CAP_"), "ALL") {
				found = true
			} else {
				rest = append(rest, n)
			}
		}
		return rest, found
	}
	addRest, addAll := all(add)
	dropRest, dropAll := all(drop)
	if addAll {
		set(capabilityNames, true)
	}
	if dropAll {
		set(capabilityNames, false)
	}
	if err := apply(addRest, true); err != nil {
		return nil, err
	}
	if err := apply(dropRest, false); err != nil {
		return nil, err
	}
	var numbers []uintptr
	for i, n := range capabilityNames {
		if have[n] {
			numbers = append(numbers, uintptr(i))
		}
	}
	return numbers, nil
}

func number(name string) int {
	for i, n := range capabilityNames {
		if n == name {
			return i
		}
	}
	return -1
}
