// Package roce is the RDMA provider of machines without RDMA: RoCEv2 (IBTA annex A17) over ordinary UDP sockets, with
// reliable-connected queue pairs, memory windows and the connection manager, in this process. It speaks to RDMA cards
// and to the kernel's rdma_rxe as well as to itself. It needs no privilege, no device and no kernel module.
//
//	p := roce.New(roce.Options{})
//	defer p.Close()
//	l, err := p.Listen(netip.MustParseAddrPort("192.0.2.1:3260"))
//
// Each local address is one UDP socket on port 4791 (a port here). Who waits for completions reads it, or else a
// goroutine of the port's own: what arrives is executed there. What is posted is sent by the goroutine that posts it.
//
// There is no authentication in RoCE: who can send packets from a peer's address, and guesses queue pair and sequence
// numbers, can write to what that peer may write to. Use it on networks that are trusted.
//
// Package wire has the packets, rc the queue pairs, cm the connections, link the sockets and a simulated network, capture
// the files that packets are written to.
package roce
