// Package images is the image table: it maps image names to commands, of this computer or in the root file system of an
// image that was loaded, since nothing is pulled.
package images

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Image is one entry of the table.
type Image struct {
	// Name is the normalised name. Names are all names of the image, when it has several.
	Name  string   `json:"-"`
	Names []string `json:"-"`
	// ID is the digest that stands for the image.
	ID string `json:"-"`
	// Digest ("sha256:…"), where given, is the ID. Entries with the same digest are one image with several names.
	Digest string `json:"digest"`
	// Entrypoint and Cmd are used as an image's are: `command` of a container replaces both, `args` replaces Cmd.
	Entrypoint  []string          `json:"entrypoint"`
	Cmd         []string          `json:"cmd"`
	Environment map[string]string `json:"environment"`
	WorkingDir  string            `json:"workingDir"`
	// User is "uid", "uid:gid" or names, of this computer or in the image's root file system; empty is root.
	User string `json:"user"`
	// Size in bytes, for display.
	Size uint64 `json:"size"`
	// Rootfs, where given, is the folder of the image's root file system. Its containers see that in place of the computer's
	// files.
	Rootfs string `json:"rootfs"`
	// Mounts are paths of this computer that the image's containers see read-only even where they are hidden otherwise.
	Mounts []string `json:"mounts"`
	// Devices are patterns of device files ("/dev/nvidia*") that the image's containers get as far as they are there.
	Devices []string `json:"devices"`
	// StopSignal that ends the container in place of SIGTERM.
	StopSignal string `json:"stopSignal"`
}

// Table is the image table file. It is read again when it changes.
type Table struct {
	path    string
	mu      sync.Mutex
	read    time.Time
	size    int64
	images  map[string]*Image
	problem error
	removed map[string]bool // by ID
}

// Open makes a table of the file at path. The file may appear or change later.
func Open(path string) *Table { return &Table{path: path, removed: map[string]bool{}} }

func (t *Table) load() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return fmt.Errorf("cannot read the image table: %w", err)
	}
	if t.images != nil && info.ModTime().Equal(t.read) && info.Size() == t.size {
		return t.problem
	}
	t.read, t.size, t.images, t.problem = info.ModTime(), info.Size(), map[string]*Image{}, nil
	data, err := os.ReadFile(t.path)
	if err != nil {
		t.problem = fmt.Errorf("cannot read the image table: %w", err)
		return t.problem
	}
	var file struct {
		Images map[string]*Image `json:"images"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.problem = fmt.Errorf("the image table %s is not valid: %w", t.path, err)
		return t.problem
	}
	for name, image := range file.Images {
		if image == nil {
			image = &Image{}
		}
		image.Name = Normalise(name)
		if image.ID = image.Digest; image.ID == "" {
			image.ID = digestOf(image.Name)
		}
		t.images[image.Name] = image
	}
	t.group()
	return nil
}

// group gives each image all its names.
func (t *Table) group() {
	names := map[string][]string{}
	for _, image := range t.images {
		names[image.ID] = append(names[image.ID], image.Name)
	}
	for _, image := range t.images {
		sort.Strings(names[image.ID])
		image.Names = names[image.ID]
	}
}

// Find returns the image with a name, a name with digest, or an ID; nil where the table has none or it was removed.
func (t *Table) Find(name string) (*Image, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.load(); err != nil {
		return nil, err
	}
	if image := t.lookUp(name); image != nil && !t.removed[image.ID] {
		return image, nil
	}
	return nil, nil
}

func (t *Table) lookUp(name string) *Image {
	if strings.HasPrefix(name, "sha256:") {
		for _, image := range t.images {
			if image.ID == name && image.Name == image.Names[0] {
				return image
			}
		}
		return nil
	}
	normalised := Normalise(name)
	if image := t.images[normalised]; image != nil {
		return image
	}
	repository, digest, found := strings.Cut(normalised, "@")
	if !found {
		return nil
	}
	for _, image := range t.images {
		if withoutTag(image.Name) == repository && image.ID == digest {
			return image
		}
	}
	return nil
}

// Pull makes a table entry present again. For an image that is not in the table it explains itself.
func (t *Table) Pull(name string) (*Image, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.load(); err != nil {
		return nil, err
	}
	image := t.lookUp(name)
	if image == nil {
		known := make([]string, 0, len(t.images))
		for n := range t.images {
			known = append(known, n)
		}
		sort.Strings(known)
		return nil, fmt.Errorf("image %q is not in this computer's image table (%s): the local cluster runs "+
			"images as local processes and pulls nothing (trainyard images load ARCHIVE adds one); known images: %s",
			name, t.path, strings.Join(known, ", "))
	}
	delete(t.removed, image.ID)
	return image, nil
}

// Remove hides an entry until it is pulled again, as removing an image does. The table file is not touched.
func (t *Table) Remove(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.load(); err != nil {
		return err
	}
	if image := t.lookUp(name); image != nil {
		t.removed[image.ID] = true
	}
	return nil
}

// List returns all present images, each once, by name.
func (t *Table) List() ([]*Image, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.load(); err != nil {
		return nil, err
	}
	var list []*Image
	for _, image := range t.images {
		if !t.removed[image.ID] && image.Name == image.Names[0] {
			list = append(list, image)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}

// Tags are the image's names with a tag.
func (i *Image) Tags() []string {
	var tags []string
	for _, name := range i.Names {
		if !strings.Contains(name, "@") {
			tags = append(tags, name)
		}
	}
	return tags
}

// RepoDigests are the names with which a registry's answer would be pinned, one for each repository.
func (i *Image) RepoDigests() []string {
	var digests []string
	for _, name := range i.Names {
		repository, _, _ := strings.Cut(name, "@")
		if digest := withoutTag(repository) + "@" + i.ID; !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
	}
	return digests
}
