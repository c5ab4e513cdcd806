package seccomp

import "golang.org/x/sys/unix"

// forbidden calls of the default filter: those with which a container could reach out of its namespaces, change the
// kernel or the computer, or widen the kernel's attack surface. Docker's and containerd's default profiles forbid them
// too (there everything else is listed as allowed; the effect on usual programs is the same).
var forbidden = []string{
	"acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "fanotify_init",
	"finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms", "init_module", "io_uring_enter",
	"io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
	"lookup_dcookie", "mount", "mount_setattr", "move_mount", "name_to_handle_at", "nfsservctl", "open_by_handle_at",
	"open_tree", "perf_event_open", "pivot_root", "process_madvise", "query_module", "quotactl", "quotactl_fd", "reboot",
	"request_key", "setns", "settimeofday", "swapoff", "swapon", "sysfs", "_sysctl", "syslog", "umount2", "unshare",
	"uselib", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old",
}

// forAdministrators are allowed again to a container that has the capability SYS_ADMIN.
var forAdministrators = map[string]bool{
	"bpf": true, "fanotify_init": true, "fsconfig": true, "fsmount": true, "fsopen": true, "fspick": true,
	"lookup_dcookie": true, "mount": true, "mount_setattr": true, "move_mount": true, "open_tree": true,
	"perf_event_open": true, "quotactl": true, "quotactl_fd": true, "setns": true, "syslog": true, "umount2": true,
	"unshare": true,
}

// newNamespaces are all CLONE_NEW* flags that clone(2) takes.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
	unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// Default is the filter of the profile RuntimeDefault. allowUserNamespace leaves clone(2) alone, for a runtime that
// itself needs it to show the container its user.
func Default(administrator, allowUserNamespace bool) []unix.SockFilter {
	var rules []rule
	for _, name := range forbidden {
		if number, known := calls[name]; known && !(administrator && forAdministrators[name]) {
			rules = append(rules, rule{number, errno(uint32(unix.EPERM))})
		}
	}
	program := assemble(rules, actionAllow, errno(uint32(unix.EPERM)))
	if administrator || allowUserNamespace {
		return program
	}
	// clone3 hides its flags behind a pointer, which a filter cannot follow: it is declared missing, and C libraries
	// then use clone.
	last := len(program) - 1
	return append(program[:last:last],
		jumpEqual(calls["clone3"], 1), result(errno(uint32(unix.ENOSYS))),
		jumpEqual(calls["clone"], 3), load(offsetFirstArg), jumpAnySet(newNamespaces, 1), result(errno(uint32(unix.EPERM))),
		result(actionAllow))
}
