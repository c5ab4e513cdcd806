package cri

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
)

// records keeps pods and containers on disk, so that a runtime which was started again knows what there was.
type records struct{ dir string }

const (
	podRecords       = "pods"
	containerRecords = "containers"
)

func openRecords(dir string) (*records, error) {
	for _, kind := range []string{podRecords, containerRecords} {
		if err := os.MkdirAll(filepath.Join(dir, kind), 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the runtime's folder: %w", err)
		}
	}
	return &records{dir}, nil
}

// folder of one pod or container: its record and its files.
func (r *records) folder(kind, id string) string { return filepath.Join(r.dir, kind, id) }

// write replaces a record in one step: a reader sees the old one or the new one, also after a crash.
func (r *records) write(kind, id string, record any) error {
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	folder := r.folder(kind, id)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(folder, "record.new")
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return fmt.Errorf("cannot write the runtime's record: %w", err)
	}
	return os.Rename(temporary, filepath.Join(folder, "record.json"))
}

func (r *records) remove(kind, id string) error { return os.RemoveAll(r.folder(kind, id)) }

// read gives the IDs and texts of all records of a kind. A folder without a readable record was being made or removed
// when the runtime ended; it is cleaned away.
func (r *records) read(kind string) (map[string][]byte, error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, kind))
	if err != nil {
		return nil, err
	}
	texts := map[string][]byte{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.folder(kind, e.Name()), "record.json"))
		if err != nil || !json.Valid(text) || strings.HasPrefix(e.Name(), ".") {
			log.Printf("removing %s/%s, which has no complete record", kind, e.Name())
			if err := r.remove(kind, e.Name()); err != nil {
				return nil, err
			}
			continue
		}
		texts[e.Name()] = text
	}
	return texts, nil
}
