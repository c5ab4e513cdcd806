package cri

import (
	"net/netip"
	"testing"
)

func TestAddressesAreGivenInTurnAndNotAtOnceAgain(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("127.77.3.0/29"))
	a.keep("127.77.3.3")
	take := func() string {
		t.Helper()
		address, err := a.take()
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	for _, want := range []string{"127.77.3.2", "127.77.3.4"} {
		if got := take(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	a.free("127.77.3.2")
	for _, want := range []string{"127.77.3.5", "127.77.3.6", "127.77.3.2"} {
		if got := take(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if address, err := a.take(); err == nil {
		t.Errorf("all are taken, but %s was given", address)
	}
}
