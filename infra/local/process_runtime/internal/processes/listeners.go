package processes

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// listening is the state of a listening socket in /proc/net/tcp.
const listening = "0A"

// Listeners gives the addresses on which the given processes listen on a TCP port.
func Listeners(pids []int, port uint16) []netip.Addr {
	sockets := map[string]netip.Addr{} // by "socket:[inode]"
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue // no IPv6
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			// Columns: number, local address, remote address, state, …; the tenth is the inode.
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != listening {
				continue
			}
			if address, ok := parseAddress(fields[1]); ok && address.Port() == port {
				sockets["socket:["+fields[9]+"]"] = address.Addr()
			}
		}
		_ = file.Close()
	}
	if len(sockets) == 0 {
		return nil
	}
	var found []netip.Addr
	for _, pid := range pids {
		folder := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // it has just ended
		}
		for _, e := range entries {
			link, err := os.Readlink(folder + "/" + e.Name())
			if address, ok := sockets[link]; ok && err == nil {
				found = append(found, address)
			}
		}
	}
	return found
}

// parseAddress reads "0100007F:1F90": words of the address in the computer's byte order, and the port.
func parseAddress(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	words, err2 := hex.DecodeString(address)
	if err != nil || err2 != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i+4 <= len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	ip, ok := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), ok
}
