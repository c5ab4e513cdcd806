package seccomp

import (
	"golang.org/x/sys/unix"
)

// Actions of a filter (seccomp(2)).
const (
	actionKill       = 0x80000000
	actionTrap       = 0x00030000
	actionErrno      = 0x00050000
	actionKillThread = 0x00000000
	actionLog        = 0x7ffc0000
	actionAllow      = 0x7fff0000
)

// Offsets in struct seccomp_data.
const (
	offsetNumber       = 0
	offsetArchitecture = 4
	offsetFirstArg     = 16
)

// errno is the action that makes a call fail with an error number; zero makes it do nothing, successfully.
func errno(number uint32) uint32 { return actionErrno | number&0xffff }

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func result(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// jumpEqual goes on with the next instruction if the loaded value is k, else skips some.
func jumpEqual(k uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
}

// jumpAnySet goes on if any bit of mask is set in the loaded value, else skips some.
func jumpAnySet(mask uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: mask, Jf: skip}
}

// rule is what a filter does with one system call.
type rule struct {
	number uint32
	action uint32
}

// assemble makes a program: calls of another architecture get foreign, listed calls their action, others fallback.
func assemble(rules []rule, fallback, foreign uint32) []unix.SockFilter {
	program := []unix.SockFilter{load(offsetArchitecture), jumpEqual(architecture, 1)}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, // ours: over the next line
		result(foreign),
		load(offsetNumber))
	for _, r := range rules {
		program = append(program, jumpEqual(r.number, 1), result(r.action))
	}
	return append(program, result(fallback))
}
