//go:build !linux

package link

import (
	"errors"
	"fmt"
	"net/netip"
)

// Listen opens the UDP link on addr: only on Linux, whose UDP sockets have a predictable IPv4 identification.
func Listen(addr netip.Addr, _ Options) (Link, error) {
	return nil, fmt.Errorf("roce: listen on %v: RoCE over UDP needs Linux: %w", addr, errors.ErrUnsupported)
}

// ListenLoopback opens a link on a free loopback address: only on Linux.
func ListenLoopback(o Options) (Link, error) {
	return Listen(netip.AddrFrom4([4]byte{127, 0, 0, 2}), o)
}
