package cri

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// firstRealTime is the first real-time signal that programs may use (signal(7), glibc).
const firstRealTime = 34

// signalNamed gives the signal of a name as CRI spells it ("SIGTERM", "SIGRTMINPLUS3"); 0 for an unknown name.
func signalNamed(name string) syscall.Signal {
	if signal := unix.SignalNum(name); signal != 0 {
		return signal
	}
	offset := func(text string) (n int) {
		for _, digit := range text {
			n = n*10 + int(digit-'0')
		}
		return n
	}
	if rest, found := strings.CutPrefix(name, "SIGRTMIN"); found {
		return syscall.Signal(firstRealTime + offset(strings.TrimPrefix(rest, "PLUS")))
	}
	if rest, found := strings.CutPrefix(name, "SIGRTMAX"); found {
		return syscall.Signal(64 - offset(strings.TrimPrefix(rest, "MINUS")))
	}
	return 0
}
