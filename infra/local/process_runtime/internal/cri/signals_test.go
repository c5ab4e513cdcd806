package cri

import (
	"syscall"
	"testing"
)

func TestSignalsHaveTheNamesOfCRIAndOfImages(t *testing.T) {
	for name, want := range map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "TERM": syscall.SIGTERM, "sigquit": syscall.SIGQUIT,
		"15": 15, "64": 64, "SIGRTMIN": 34, "SIGRTMINPLUS3": 37, "SIGRTMIN+3": 37, "RTMIN+0": 34, "SIGRTMAX": 64,
		"SIGRTMAXMINUS14": 50, "SIGRTMAX-14": 50,
		"": 0, "0": 0, "65": 0, "-9": 0, "SIGNOTHING": 0, "SIGRTMIN+31": 0, "SIGRTMAX-x": 0, "SIGRTMIN99999999999999999999": 0,
	} {
		if got := signalNamed(name); got != want {
			t.Errorf("%q: got %d, want %d", name, got, want)
		}
	}
}
