// Package processes measures trees of processes from /proc.
package processes

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is the unit of times in /proc; it is 100 on every Linux that Go runs on (sysconf(_SC_CLK_TCK)).
const ticksPerSecond = 100

// Process is one line of the process table.
type Process struct {
	PID, Parent int
	// CPU is the time used, with that of children which were waited for.
	CPU time.Duration
	// RSS is the resident memory in bytes, shared pages included.
	RSS uint64
	// Threads is the number of threads.
	Threads uint64
}

// Table is a snapshot of all processes that this /proc shows.
type Table struct {
	processes map[int]Process
	children  map[int][]int
}

// Usage is the sum over a tree.
type Usage struct {
	Processes, Threads uint64
	CPU                time.Duration
	RSS                uint64
	PIDs               []int
}

// Snapshot reads the process table: one small file for each process.
func Snapshot() (*Table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	t := &Table{processes: map[int]Process{}, children: map[int][]int{}}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has just ended
		}
		if p, ok := parseStat(pid, stat); ok {
			t.processes[pid] = p
			t.children[p.Parent] = append(t.children[p.Parent], pid)
		}
	}
	return t, nil
}

// parseStat reads /proc/<pid>/stat (proc_pid_stat(5)). The second field, the name, may hold spaces and brackets.
func parseStat(pid int, stat []byte) (Process, bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return Process{}, false
	}
	// fields[0] is the third field of the manual page.
	number := func(field int) uint64 {
		n, _ := strconv.ParseUint(string(fields[field-3]), 10, 64)
		return n
	}
	ticks := number(14) + number(15) + number(16) + number(17)
	return Process{
		PID: pid, Parent: int(number(4)), Threads: number(20),
		CPU: time.Duration(ticks) * time.Second / ticksPerSecond,
		RSS: number(24) * uint64(os.Getpagesize()),
	}, true
}

// Tree sums a process and all below it.
func (t *Table) Tree(root int) Usage {
	var u Usage
	queue := []int{root}
	for len(queue) > 0 {
		pid := queue[0]
		queue = append(queue[1:], t.children[pid]...)
		p, ok := t.processes[pid]
		if !ok {
			continue
		}
		u.Processes++
		u.Threads += p.Threads
		u.CPU += p.CPU
		u.RSS += p.RSS
		u.PIDs = append(u.PIDs, pid)
	}
	return u
}

// Below sums what is below a container's init. The init itself is the runtime's and no use of the container's, except
// for its processor time: the time of the processes that it has collected is in it.
func (t *Table) Below(init int) Usage {
	u := t.Tree(init)
	if own, there := t.processes[init]; there {
		u.Processes--
		u.Threads -= own.Threads
		u.RSS -= own.RSS
		u.PIDs = u.PIDs[1:]
	}
	return u
}
