package images

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Normalise gives the one spelling of an image name: without Docker Hub's implied registry and project, with a tag.
// A digest is kept and then stands instead of the tag.
func Normalise(name string) string {
	name = strings.TrimPrefix(name, "docker.io/")
	name = strings.TrimPrefix(name, "index.docker.io/")
	name = strings.TrimPrefix(name, "library/")
	if repository, digest, found := strings.Cut(name, "@"); found {
		return withoutTag(repository) + "@" + digest
	}
	if withoutTag(name) == name {
		return name + ":latest"
	}
	return name
}

// withoutTag cuts ":tag", but not the port of a registry ("host:5000/image").
func withoutTag(name string) string {
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		return name[:i]
	}
	return name
}

// digestOf is the stable identity of a table entry. It depends on the name alone, since the entry describes files that
// change in place (a checkout, a virtual environment): a content digest would claim more than is known.
func digestOf(normalised string) string {
	sum := sha256.Sum256([]byte("trainyard image table: " + normalised))
	return "sha256:" + hex.EncodeToString(sum[:])
}
