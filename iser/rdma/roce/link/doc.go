// Package link carries RoCEv2 packets between addresses. A Link is one local address and UDP port 4791. UDP (Listen) is
// the real one; it needs no privilege, no device and no kernel module. Net has links in memory that lose, double,
// reorder, corrupt and delay by seed, for tests under testing/synctest.
//
// A link seals what it sends (the ICRC covers IP header fields that only it knows, ROCE.md 1.8) and does not check what
// it receives: wire.Parse and wire.Path do.
//
//	l, err := link.Listen(netip.MustParseAddr("192.0.2.1"), link.Options{})
//	...
//	path := wire.NewPath(l.External(), peer)
//	err = l.Send([]link.Burst{{Path: path, Data: packets, Size: packetSize}})
//	n, err := l.Recv(received, deadline)
//
// # Speed
//
// What costs on UDP is the way of each datagram through the stack, not the system call: a batch of 64 datagrams is 20 %
// faster than one by one, but a burst that the kernel cuts up (UDP_SEGMENT) and joins again (UDP_GRO) four times at 4 KiB
// a packet and more below. So a Burst is what is sent and a joined run is what is received. Peers that send no UDP checksum
// (rxe, NICs) are never joined. Where an interface cannot cut up, the link sees it and goes on without.
package link
