package cri

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/container"
	"trainyard.dev/process-runtime/internal/images"
)

// identity is who a container's processes are, with what /etc/passwd would say.
type identity struct {
	uid, gid uint32
	groups   []uint32
	name     string
	home     string
}

// account is one line of /etc/passwd.
type account struct {
	name, home string
	uid, gid   uint32
}

// identify decides the user: the security context, else the image, else root.
func (s *Server) identify(config *cri.ContainerConfig, image *images.Image) (identity, error) {
	from := s.originOf(image)
	if err := from.check(); err != nil { // before a missing file becomes a missing user
		return identity{}, err
	}
	sc := config.GetLinux().GetSecurityContext()
	wanted := image.User
	switch {
	case sc.GetRunAsUser() != nil:
		wanted = strconv.FormatInt(sc.RunAsUser.Value, 10)
	case sc.GetRunAsUsername() != "":
		wanted = sc.RunAsUsername
	}
	user, group, _ := strings.Cut(wanted, ":")
	if user == "" {
		user = "0"
	}
	found, err := findAccount(from, user)
	if err != nil {
		return identity{}, err
	}
	id := identity{uid: found.uid, gid: found.gid, name: found.name, home: found.home}
	if group != "" {
		if id.gid, err = findGroup(from, group); err != nil {
			return id, err
		}
	}
	if g := sc.GetRunAsGroup(); g != nil {
		if sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
			return id, fmt.Errorf("run_as_group is set without a user")
		}
		id.gid = uint32(g.Value)
	}
	id.groups = []uint32{id.gid}
	var further []uint32
	if sc.GetSupplementalGroupsPolicy() == cri.SupplementalGroupsPolicy_Merge {
		further = from.memberships(id.name)
	}
	for _, g := range sc.GetSupplementalGroups() {
		further = append(further, uint32(g))
	}
	for _, g := range further {
		if !slices.Contains(id.groups, g) {
			id.groups = append(id.groups, g)
		}
	}
	return id, nil
}

// findAccount looks up a name, or a number, which needs no account.
func findAccount(from origin, user string) (account, error) {
	number, err := strconv.ParseUint(user, 10, 32)
	for fields := range linesOf(from, "/etc/passwd", 7) {
		uid, err1 := strconv.ParseUint(fields[2], 10, 32)
		gid, err2 := strconv.ParseUint(fields[3], 10, 32)
		if err1 != nil || err2 != nil || fields[0] != user && (err != nil || uid != number) {
			continue
		}
		found := account{name: fields[0], home: fields[5], uid: uint32(uid), gid: uint32(gid)}
		found.home = from.home(found)
		return found, nil
	}
	if err != nil {
		return account{}, fmt.Errorf("no user %q %s", user, from.place())
	}
	return from.stranger(uint32(number)), nil
}

func findGroup(from origin, group string) (uint32, error) {
	if number, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(number), nil
	}
	for fields := range linesOf(from, "/etc/group", 4) {
		if fields[0] == group {
			number, err := strconv.ParseUint(fields[2], 10, 32)
			return uint32(number), err
		}
	}
	return 0, fmt.Errorf("no group %q %s", group, from.place())
}

// linesOf yields the lines of a file such as /etc/passwd.
func linesOf(from origin, path string, count int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		file, err := from.open(path)
		if err != nil {
			return
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if fields := strings.Split(lines.Text(), ":"); len(fields) == count && !yield(fields) {
				return
			}
		}
	}
}

// passwd gives an /etc/passwd in which the container's user has a name and a home, so that programs which ask for them
// (Python's getpass does) get an answer.
func (id identity) passwd() []byte {
	lines := []string{"root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"}
	if id.uid == 65534 {
		lines = lines[:1]
	}
	if id.uid != 0 {
		lines = append(lines, fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh", id.name, id.uid, id.gid, id.home))
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// group gives the /etc/group to match.
func (id identity) group() []byte {
	lines := []string{"root:x:0:", "nogroup:x:65534:"}
	if id.gid != 0 && id.gid != 65534 {
		lines = append(lines, fmt.Sprintf("%s:x:%d:", id.name, id.gid))
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// status is what the processes really get: with a single user ID there are no supplemental groups.
func (id identity) status(singleUser bool) *cri.ContainerUser {
	linux := &cri.LinuxContainerUser{Uid: int64(id.uid), Gid: int64(id.gid)}
	groups := id.groups
	if singleUser {
		groups = groups[:1]
	}
	for _, g := range groups {
		linux.SupplementalGroups = append(linux.SupplementalGroups, int64(g))
	}
	return &cri.ContainerUser{Linux: linux}
}

func (id identity) of(singleUser bool) container.Identity {
	return container.Identity{UID: id.uid, GID: id.gid, Groups: id.groups, Nested: singleUser}
}

// hasSingleUser says whether this process lives in a user namespace that maps one user ID only.
func hasSingleUser() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text))
	return len(fields) == 3 && fields[2] == "1"
}
