package cri

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Real-time signals that programs may use (signal(7), glibc).
const firstRealTime, lastRealTime = 34, 64

// signalNamed gives the signal of a name as CRI spells it ("SIGTERM", "SIGRTMINPLUS3") or as images do ("TERM",
// "SIGRTMIN+3", "15"); 0 for an unknown one.
func signalNamed(name string) syscall.Signal {
	if number, err := strconv.ParseUint(name, 10, 8); err == nil {
		if number > lastRealTime {
			return 0
		}
		return syscall.Signal(number)
	}
	name = "SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if signal := unix.SignalNum(name); signal != 0 {
		return signal
	}
	for _, end := range []struct {
		name, word, sign string
		number, step     int
	}{{"SIGRTMIN", "PLUS", "+", firstRealTime, 1}, {"SIGRTMAX", "MINUS", "-", lastRealTime, -1}} {
		rest, found := strings.CutPrefix(name, end.name)
		if !found {
			continue
		}
		if rest == "" {
			return syscall.Signal(end.number)
		}
		distance, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimPrefix(rest, end.word), end.sign), 10, 8)
		if err == nil && distance <= lastRealTime-firstRealTime {
			return syscall.Signal(end.number + end.step*int(distance))
		}
	}
	return 0
}
