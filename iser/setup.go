package iser

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
)

// maxSGE bounds the pieces of one work request: more make every entry of a queue larger. 1 MiB in chunks
// of 64 KiB fits.
const maxSGE = 16

// depths are the sizes of a connection's queues, in work requests.
type depths struct{ send, read, recv int }

// fit shrinks d to what a device has, or says that it has too little: minRecv receives and a send queue
// that moves at all. One completion queue takes the completions of all, and an overflow of it would be
// the end of the connection.
func (d *depths) fit(l *rdma.Limits, minRecv int) error {
	const minSend = 4
	d.send = min(d.send, l.MaxQPDepth-d.read)
	d.recv = min(d.recv, l.MaxQPDepth, l.MaxCQDepth-d.send-d.read)
	if d.send < minSend || d.recv < minRecv {
		return fmt.Errorf("queues of %d sends and %d receives are too short (want %d and %d): the device has %d, completions %d",
			d.send, d.recv, minSend, minRecv, l.MaxQPDepth, l.MaxCQDepth)
	}
	return nil
}

// open makes what a connection needs before it can be established: queues, send slots for login, and
// receives, posted.
func (c *conn) open(d depths, receives int) error {
	c.limits = c.dev.Limits()
	c.local, c.remote = netAddr(c.ep.LocalAddr()), netAddr(c.ep.RemoteAddr())
	c.maxData = maxLoginData
	c.depth = d.recv
	c.staging = newStaging(d.send, d.read, max(1, min(maxSGE, c.limits.MaxSGE)))
	c.ops = newOps(d.send + d.read)
	cq, err := c.dev.NewCQ(d.send + d.read + d.recv)
	if err != nil {
		return err
	}
	c.cq = cq
	c.qp, err = c.ep.CreateQP(rdma.QPConfig{
		SendCQ: cq, RecvCQ: cq, SendDepth: d.send + d.read, RecvDepth: d.recv, MaxSendSGE: c.maxSGE, MaxRecvSGE: 1,
	})
	if err != nil {
		return err
	}
	if err := c.slots.grow(c.dev, loginSlots, recvSize); err != nil {
		return err
	}
	return c.addReceives(receives)
}

// discard frees what open has made; the endpoint is closed already or by it.
func (c *conn) discard() error {
	if c.cq == nil {
		return c.ep.Close()
	}
	return c.shut()
}

func netAddr(a netip.AddrPort) net.Addr { return net.TCPAddrFromAddrPort(a) }

// errTooManyLogins: see maxPending.
var errTooManyLogins = errors.New("too many connections that have not logged in")
