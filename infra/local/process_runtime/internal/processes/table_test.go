package processes

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func TestTheNameOfAProcessMayHoldAnything(t *testing.T) {
	stat := "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 100 50 25 25 20 0 4 0 12345 1000 10 18446744073709551615 1 1 0 0"
	p, ok := parseStat(7, []byte(stat))
	want := Process{PID: 7, Parent: 3, Threads: 4, CPU: 2 * time.Second, RSS: 10 * uint64(os.Getpagesize())}
	if !ok || p != want {
		t.Errorf("got %+v", p)
	}
	if _, ok := parseStat(7, []byte("7 (torn")); ok {
		t.Error("a torn line was accepted")
	}
}

func TestATreeIsSummedAndOthersAreNot(t *testing.T) {
	child := exec.Command("sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	table, err := Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	own, sleep := table.Tree(os.Getpid()), table.Tree(child.Process.Pid)
	if own.Processes < 2 || own.RSS <= sleep.RSS || sleep.Processes != 1 {
		t.Errorf("own %+v, child %+v", own, sleep)
	}
	if below := table.Below(os.Getpid()); below.Processes != own.Processes-1 || below.CPU != own.CPU ||
		slices.Contains(below.PIDs, os.Getpid()) || below.RSS >= own.RSS {
		t.Errorf("below itself: %+v of %+v", below, own)
	}
	if exact := Proportional(own.PIDs); exact == 0 || exact > own.RSS+(4<<20) {
		t.Errorf("proportional %d, resident %d", exact, own.RSS)
	}
	if gone := table.Tree(1 << 30); gone.Processes != 0 {
		t.Errorf("a process that is not there: %+v", gone)
	}
}

func TestListenersAreFoundByProcessAndPort(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.99.88.77:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	want := []netip.Addr{netip.MustParseAddr("127.99.88.77")}
	if got := Listeners([]int{os.Getpid()}, port); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := Listeners([]int{1}, port); len(got) != 0 {
		t.Errorf("another process: %v", got)
	}
}
