package images

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestNamesAreNormalised(t *testing.T) {
	digest := "@sha256:1234"
	for name, want := range map[string]string{
		"etcd": "etcd:latest", "library/etcd:3": "etcd:3", "docker.io/library/etcd": "etcd:latest",
		"docker.io/trainyard/training:local": "trainyard/training:local", "host:5000/a/b": "host:5000/a/b:latest",
		"host:5000/a/b:1": "host:5000/a/b:1", "a/b:1" + digest: "a/b" + digest, "host:5000/a" + digest: "host:5000/a" + digest,
	} {
		if got := Normalise(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func table(t *testing.T, text string) (*Table, func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "images.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// Two writes within one tick of the file system's clock, of equal length, would look like one.
		soon := time.Now().Add(time.Second)
		if err := os.Chtimes(path, soon, soon); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	return Open(path), write
}

func find(t *testing.T, from *Table, name string) *Image {
	t.Helper()
	image, err := from.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestAnImageIsFoundByNameAndIDAndDigest(t *testing.T) {
	images, _ := table(t, `{"images": {"a/b:1": {"user": "1"}, "c": {"user": "2"}}}`)
	image := find(t, images, "docker.io/a/b:1")
	if image == nil || image.User != "1" {
		t.Fatalf("by name: %v", image)
	}
	for _, name := range []string{image.ID, "a/b@" + image.ID, "a/b:ignored@" + image.ID} {
		if found := find(t, images, name); found != image {
			t.Errorf("%s: %v", name, found)
		}
	}
	if found := find(t, images, "a/b:2"); found != nil {
		t.Errorf("another tag: %v", found)
	}
}

func TestEntriesWithOneDigestAreOneImage(t *testing.T) {
	images, _ := table(t, `{"images": {"a:1": {"digest": "sha256:00"}, "a:2": {"digest": "sha256:00"}, "b": {}}}`)
	list, err := images.List()
	if err != nil || len(list) != 2 {
		t.Fatalf("%v %v", list, err)
	}
	if tags := find(t, images, "a:2").Tags(); !slices.Equal(tags, []string{"a:1", "a:2"}) {
		t.Errorf("tags: %v", tags)
	}
	if err := images.Remove("a:1"); err != nil {
		t.Fatal(err)
	}
	if find(t, images, "a:2") != nil {
		t.Error("the other name of a removed image is still there")
	}
	if _, err := images.Pull("a:2"); err != nil || find(t, images, "a:1") == nil {
		t.Errorf("it did not come back: %v", err)
	}
}

func TestTheTableIsReadAgainWhenItChanges(t *testing.T) {
	images, write := table(t, `{"images": {"a": {}}}`)
	if find(t, images, "b") != nil {
		t.Fatal("b is there already")
	}
	write(`{"images": {"a": {}, "b": {}}}`)
	if find(t, images, "b") == nil {
		t.Error("b was not seen")
	}
	write(`{"images": {`)
	if _, err := images.Find("a"); err == nil {
		t.Error("a torn table was accepted")
	}
}
