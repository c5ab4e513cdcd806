package container

import (
	"fmt"
	"os"
	"slices"
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

// Capabilities gives the numbers of what a container may have: the default, less drop, plus add. "ALL" counts before
// single names, so that "drop ALL, add X" and "add ALL, drop X" mean what they say.
func Capabilities(privileged bool, add, drop []string) ([]uintptr, error) {
	have := map[string]bool{}
	set := func(names []string, value bool) {
		for _, name := range names {
			have[name] = value
		}
	}
	set(defaultCapabilities, true)
	if privileged {
		set(capabilityNames, true)
	}
	add, addAll, err := singleNames(add)
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := singleNames(drop)
	if err != nil {
		return nil, err
	}
	if addAll {
		set(capabilityNames, true)
	}
	if dropAll {
		set(capabilityNames, false)
	}
	set(add, true)
	set(drop, false)
	var numbers []uintptr
	for i, name := range capabilityNames {
		if have[name] {
			numbers = append(numbers, uintptr(i))
		}
	}
	return numbers, nil
}

// singleNames takes "ALL" out of a list of names and checks the others, which may begin with "CAP_".
func singleNames(names []string) (single []string, all bool, err error) {
	for _, name := range names {
		name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		switch {
		case name == "ALL":
			all = true
		case slices.Contains(capabilityNames, name):
			single = append(single, name)
		default:
			return nil, false, fmt.Errorf("unknown capability %q", name)
		}
	}
	return single, all, nil
}
