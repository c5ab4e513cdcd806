package container

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// wire sends and receives JSON messages with open files over a Unix stream socket. A message is a length of 4 bytes,
// which carries the files, and the text; so a message may have any size, unlike a datagram.
type wire struct {
	socket  *net.UnixConn
	sending sync.Mutex
}

// newWirePair gives the two ends; the second one is for the child.
func newWirePair() (*wire, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("no socket pair: %w", err)
	}
	ours, err := wireOf(os.NewFile(uintptr(fds[0]), "init"))
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return ours, os.NewFile(uintptr(fds[1]), "runtime"), nil
}

func wireOf(f *os.File) (*wire, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("not a socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a Unix socket")
	}
	return &wire{socket: unixConn}, nil
}

func (w *wire) send(message any, files ...*os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	w.sending.Lock()
	defer w.sending.Unlock()
	head := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
	if _, _, err := w.socket.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = w.socket.Write(text)
	return err
}

func (w *wire) receive(message any) ([]*os.File, error) {
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*8))
	n, m, _, _, err := w.socket.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	files, err := filesOf(rights[:m])
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(w.socket, head[n:]); err != nil {
		return files, err
	}
	text := make([]byte, binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(w.socket, text); err != nil {
		return files, err
	}
	return files, json.Unmarshal(text, message)
}

func filesOf(rights []byte) ([]*os.File, error) {
	var files []*os.File
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
