package seccomp

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// run interprets a filter as the kernel does, for one call.
func run(t *testing.T, program []unix.SockFilter, arch, call, arg uint32) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data[offsetNumber:], call)
	binary.NativeEndian.PutUint32(data[offsetArchitecture:], arch)
	binary.NativeEndian.PutUint32(data[offsetFirstArg:], arg)
	var value uint32
	for i := 0; i < len(program); i++ {
		p := program[i]
		switch p.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			value = binary.NativeEndian.Uint32(data[p.K:])
		case unix.BPF_JMP | unix.BPF_JA:
			i += int(p.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			i += jump(p, value == p.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			i += jump(p, value&p.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return p.K
		default:
			t.Fatalf("unknown instruction %#x", p.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func jump(p unix.SockFilter, is bool) int {
	if is {
		return int(p.Jt)
	}
	return int(p.Jf)
}

func TestTheDefaultFilter(t *testing.T) {
	eperm, enosys := errno(uint32(unix.EPERM)), errno(uint32(unix.ENOSYS))
	for _, c := range []struct {
		name           string
		call, arg      uint32
		administrator  bool
		userNamespaces bool
		want           uint32
	}{
		{"an ordinary call", unix.SYS_READ, 0, false, false, actionAllow},
		{"mount", unix.SYS_MOUNT, 0, false, false, eperm},
		{"mount by an administrator", unix.SYS_MOUNT, 0, true, false, actionAllow},
		{"reboot by an administrator", unix.SYS_REBOOT, 0, true, false, eperm},
		{"a thread", unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD, false, false, actionAllow},
		{"a namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER, false, false, eperm},
		{"a namespace that the runtime needs", unix.SYS_CLONE, unix.CLONE_NEWUSER, false, true, actionAllow},
		{"clone3", unix.SYS_CLONE3, 0, false, false, enosys},
		{"clone3 by an administrator", unix.SYS_CLONE3, 0, true, false, actionAllow},
	} {
		if got := run(t, Default(c.administrator, c.userNamespaces), architecture, c.call, c.arg); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := run(t, Default(false, false), unix.AUDIT_ARCH_I386, unix.SYS_READ, 0); got != eperm {
		t.Errorf("a call of another architecture: %#x", got)
	}
}

func TestAProfileFile(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "profile.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	filter, err := FromFile(write(`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
		{"names": ["read", "no_such_call"], "action": "SCMP_ACT_ALLOW"}, {"name": "write", "action": "SCMP_ACT_KILL"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for call, want := range map[uint32]uint32{
		unix.SYS_READ: actionAllow, unix.SYS_WRITE: actionKill, unix.SYS_OPENAT: errno(38),
	} {
		if got := run(t, filter, architecture, call, 0); got != want {
			t.Errorf("call %d: got %#x, want %#x", call, got, want)
		}
	}
	for text, part := range map[string]string{
		`{"defaultAction": "SCMP_ACT_FLY"}`: "unknown action", `{`: "not valid",
		`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
			"includes": {"caps": ["CAP_SYS_ADMIN"]}}]}`: "does not support",
	} {
		if _, err := FromFile(write(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestChangingAnOwnerIsNothingUnderItsFilter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and the filter with it
		// Without rights a filter may only be loaded by who gives up gaining any.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- err
			return
		}
		if err := Load(IgnoreChown()); err != nil {
			done <- err
			return
		}
		done <- unix.Chown(path, 4321, 4321)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Uid == 4321 {
		t.Errorf("the owner is %d, %v", stat.Uid, err)
	}
}
