package crilog

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// records are the lines of a log without their times.
func records(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		list = append(list, rest)
	}
	return list
}

func TestLinesPartsAndTheUnfinishedEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod", "c.log")
	log, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var also bytes.Buffer
	long := strings.Repeat("x", longestLine)
	text := "one\n\n" + long + "yz\nend"
	log.Copy("stdout", strings.NewReader(text), &also)
	log.Close()
	want := []string{"stdout F one", "stdout F ", "stdout P " + long, "stdout F yz", "stdout F end"}
	if got := records(t, path); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %.200q", got)
	}
	if also.String() != text {
		t.Error("the attached client got something else")
	}
}

func TestAfterRotationANewFileIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.log")
	log, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	log.Copy("stderr", strings.NewReader("old\n"), io.Discard)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err != nil {
		t.Fatal(err)
	}
	log.Copy("stderr", strings.NewReader("new\n"), io.Discard)
	log.Close()
	if got := records(t, path); len(got) != 1 || got[0] != "stderr F new" {
		t.Errorf("got %q", got)
	}
}
