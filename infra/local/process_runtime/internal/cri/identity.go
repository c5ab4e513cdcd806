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
	accounts := readAccounts("/etc/passwd")
	sc := config.GetLinux().GetSecurityContext()
	id := identity{name: "root", home: "/root"}
	wanted := image.User
	switch {
	case sc.GetRunAsUser() != nil:
		wanted = strconv.FormatInt(sc.RunAsUser.Value, 10)
	case sc.GetRunAsUsername() != "":
		wanted = sc.RunAsUsername
	}
	user, group, _ := strings.Cut(wanted, ":")
	if user != "" {
		found, err := findAccount(accounts, user)
		if err != nil {
			return id, err
		}
		id = identity{uid: found.uid, gid: found.gid, name: found.name, home: found.home}
	}
	if group != "" {
		gid, err := findGroup(group)
		if err != nil {
			return id, err
		}
		id.gid = gid
	}
	if g := sc.GetRunAsGroup(); g != nil {
		if sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
			return id, fmt.Errorf("run_as_group is set without a user")
		}
		id.gid = uint32(g.Value)
	}
	// Groups of the computer's own /etc/group are not the image's, so none are merged in.
	id.groups = []uint32{id.gid}
	for _, g := range sc.GetSupplementalGroups() {
		if !slices.Contains(id.groups, uint32(g)) {
			id.groups = append(id.groups, uint32(g))
		}
	}
	return id, nil
}

// findAccount looks up a name, or a number, which needs no account.
func findAccount(accounts []account, user string) (account, error) {
	number, err := strconv.ParseUint(user, 10, 32)
	for _, a := range accounts {
		if err == nil && a.uid == uint32(number) || a.name == user {
			a.home = "/home/" + a.name // the computer's own home folders stay hidden
			if a.uid == 0 {
				a.home = "/root"
			}
			return a, nil
		}
	}
	if err != nil {
		return account{}, fmt.Errorf("no user %q on this computer", user)
	}
	// As in distroless images, whose user this project's images have.
	return account{name: "nonroot", home: "/home/nonroot", uid: uint32(number), gid: 0}, nil
}

func findGroup(group string) (uint32, error) {
	if number, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(number), nil
	}
	for fields := range linesOf("/etc/group", 4) {
		if fields[0] == group {
			number, err := strconv.ParseUint(fields[2], 10, 32)
			return uint32(number), err
		}
	}
	return 0, fmt.Errorf("no group %q on this computer", group)
}

func readAccounts(path string) []account {
	var accounts []account
	for fields := range linesOf(path, 7) {
		uid, err1 := strconv.ParseUint(fields[2], 10, 32)
		gid, err2 := strconv.ParseUint(fields[3], 10, 32)
		if err1 == nil && err2 == nil {
			accounts = append(accounts, account{name: fields[0], home: fields[5], uid: uint32(uid), gid: uint32(gid)})
		}
	}
	return accounts
}

// linesOf yields the lines of a file such as /etc/passwd.
func linesOf(path string, count int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		file, err := os.Open(path)
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
