// Package crilog writes container logs in the format that the kubelet reads:
// "<time> <stream> <F for a full line, P for a part> <text>".
package crilog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// longestLine is where a line is cut into parts, as other runtimes do.
const longestLine = 16 * 1024

// Log is one container's log file.
type Log struct {
	mu   sync.Mutex
	path string
	file *os.File
}

// Open opens (or makes) a log. With an empty path nothing is kept.
func Open(path string) (*Log, error) {
	l := &Log{path: path}
	if path == "" {
		return l, nil
	}
	return l, l.Reopen()
}

// Reopen opens the path anew, after the kubelet has moved the old file away.
func (l *Log) Reopen() error {
	if l.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return fmt.Errorf("cannot make the log's folder: %w", err)
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("cannot open the log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file = file
	return nil
}

// Close ends the log.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// Copy writes what it reads as lines of a stream ("stdout" or "stderr") until the end, and each piece to also as it is.
func (l *Log) Copy(stream string, from io.Reader, also io.Writer) {
	reader := bufio.NewReaderSize(io.TeeReader(from, also), longestLine)
	var buffer []byte
	for {
		text, err := reader.ReadSlice('\n')
		switch {
		case err == nil:
			buffer = l.line(buffer, stream, 'F', text)
		case errors.Is(err, bufio.ErrBufferFull):
			buffer = l.line(buffer, stream, 'P', text)
		default:
			if len(text) > 0 {
				l.line(buffer, stream, 'F', text)
			}
			return
		}
	}
}

// line writes one record and gives back the buffer for the next.
func (l *Log) line(buffer []byte, stream string, tag byte, text []byte) []byte {
	buffer = time.Now().UTC().AppendFormat(buffer[:0], time.RFC3339Nano)
	buffer = append(append(append(buffer, ' '), stream...), ' ', tag, ' ')
	buffer = append(buffer, text...)
	if n := len(buffer); buffer[n-1] != '\n' {
		buffer = append(buffer, '\n')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		// A full disk must not stop the container; the kubelet reports the disk.
		_, _ = l.file.Write(buffer)
	}
	return buffer
}
