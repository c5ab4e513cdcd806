// Package container makes and runs containers as processes of this computer.
//
// The runtime starts itself again as a small init, one for each container. The init makes the container's view of the
// files, starts the main process in it, starts further processes (exec) on request, and is the first process of the
// container's process namespace: when it ends, for whatever reason, the kernel ends the whole tree. The runtime and
// its init talk over a socket pair; its end of file, like the death of the runtime's spawning thread, ends the init.
package container

import "golang.org/x/sys/unix"

// Spec is all that the init needs to know. It travels over the socket, never through the environment or arguments,
// which other users of the computer could read.
type Spec struct {
	// Root is an empty folder that becomes the container's root.
	Root string
	// Image is what the container sees in place of the computer's files, if its image has content.
	Image *ImageFiles
	// Hide are folders of the computer that are masked. Show are paths of the computer that are visible all the same, or
	// in an image as well (read-only).
	Hide, Show []string
	// Mounts are the volumes.
	Mounts []Mount
	// Devices are device files, host path to container path.
	Devices []Device
	// Shm is the pod's shared memory folder, mounted at /dev/shm.
	Shm string
	// HostProcesses shows the processes of the node in place of the container's own.
	HostProcesses bool
	// ReadonlyRoot makes all but volumes, /proc and /dev read-only.
	ReadonlyRoot bool
	// Masked and Readonly paths, from the security context.
	Masked, Readonly []string
	// Privileged keeps /sys writable and all devices visible.
	Privileged bool
	// Sandbox namespaces to join, as numbers of inherited files (0: none).
	UTS, IPC int

	Identity     Identity
	Capabilities []uintptr
	NoNewPrivs   bool
	// Seccomp programs that are loaded in this order.
	Seccomp [][]unix.SockFilter
	// OOMScoreAdj is written to the init and so inherited by all.
	OOMScoreAdj int
	// Home, where named, is made as a writable folder owned by the container's user.
	Home    string
	Process Process
}

// Mount is one volume.
type Mount struct {
	Source, Target string
	Readonly       bool
	// RecursiveReadonly also covers mounts below the source.
	RecursiveReadonly bool
	// Propagation is unix.MS_PRIVATE, MS_SLAVE or MS_SHARED.
	Propagation uintptr
}

// Device is one device file.
type Device struct{ Source, Target string }

// Identity is who the container's processes are.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
	// Nested is set where the runtime has only one user ID to give. A nested user namespace then shows the wanted IDs
	// to the processes, while the computer still sees the user who started it all.
	Nested bool
}

// Process is a command to run in a container.
type Process struct {
	Args, Env []string
	Dir       string
	// Terminal gives it a new terminal in place of the three streams.
	Terminal      bool
	Width, Height uint16
}

// request is what the runtime says to the init.
type request struct {
	Kind    string // "start", "exec", "signal"
	ID      int    // chosen by the runtime; 0 is the main process
	Spec    *Spec
	Process *Process
	Signal  int
}

// reply is what the init says to the runtime.
type reply struct {
	Kind   string // "started" (with the terminal as file, if any), "failed", "exited"
	ID     int
	PID    int
	Code   int
	Signal int
	Error  string
}
