package container

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newTerminal opens a terminal of the container. The first file is the runtime's side, the second the process's.
func newTerminal(width, height uint16) (*os.File, *os.File, error) {
	master, err := os.OpenFile("/dev/pts/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("no terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("no terminal: %w", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("no terminal: %w", err)
	}
	_ = ResizeTerminal(master, width, height)
	return master, slave, nil
}

// ResizeTerminal tells a terminal its size in characters; zero means unknown and changes nothing.
func ResizeTerminal(terminal *os.File, width, height uint16) error {
	if width == 0 || height == 0 {
		return nil
	}
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	}); err != nil {
		return err
	}
	return failed
}
