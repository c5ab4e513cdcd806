package cri

import (
	"fmt"
	"net/netip"
)

// addresses gives each pod one of the node's loopback addresses. Linux answers on all of 127.0.0.0/8, so two pods may
// use the same port if they listen on their own address.
type addresses struct {
	network netip.Prefix
	used    map[netip.Addr]bool
	last    netip.Addr
}

func newAddresses(network netip.Prefix) *addresses {
	network = network.Masked()
	// The network's first usable address is the node's own.
	return &addresses{network: network, used: map[netip.Addr]bool{}, last: network.Addr().Next()}
}

// take gives the next free address after the last one given, so that a freed address is not given again at once.
func (a *addresses) take() (string, error) {
	first := a.network.Addr().Next()
	candidate := a.last
	for range 1 << (32 - a.network.Bits()) {
		candidate = candidate.Next()
		// The network's last address is its broadcast address by custom.
		if !a.network.Contains(candidate) || !a.network.Contains(candidate.Next()) {
			candidate = first
			continue
		}
		if candidate != first && !a.used[candidate] {
			a.used[candidate], a.last = true, candidate
			return candidate.String(), nil
		}
	}
	return "", fmt.Errorf("all addresses of the node's pod network %s are in use", a.network)
}

// keep marks an address that a recorded pod has.
func (a *addresses) keep(address string) {
	if ip, err := netip.ParseAddr(address); err == nil {
		a.used[ip] = true
	}
}

func (a *addresses) free(address string) {
	if ip, err := netip.ParseAddr(address); err == nil {
		delete(a.used, ip)
	}
}
