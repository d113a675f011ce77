package isns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
)

// DefaultPort is the server's (RFC 4171, 3.2).
const DefaultPort = 3205

// Times of a client.
const (
	// registered is how long a registration lasts at the server without a sign of life: what we ask for.
	registered = 15 * time.Minute
	// refreshLeast and refreshMost bound the time between signs of life, whatever period the server says.
	refreshLeast = 20 * time.Second
	refreshMost  = 5 * time.Minute
	// exchangeTimeout bounds connecting, and each question with its answer.
	exchangeTimeout = 10 * time.Second
	// leaveTimeout bounds taking the registration back when the daemon ends.
	leaveTimeout = 2 * time.Second
	// retryLeast and retryMost bound the time between attempts after a failure; it doubles.
	retryLeast = 5 * time.Second
	retryMost  = 5 * time.Minute
	// maxAnswerPDUs bounds what is read for one answer.
	maxAnswerPDUs = 256
)

// Config is what a Client needs.
type Config struct {
	// Server is NAME:PORT or ADDRESS:PORT.
	Server string
	// Entity names this host among the server's clients: its name or an address.
	Entity string
	// Nodes are the targets with their portals, as who talks to us at the address here can reach them.
	Nodes func(here netip.Addr) []Node
	// Log gets one line an event; it must not be nil.
	Log logrus.FieldLogger
}

// A Client keeps targets registered.
type Client struct {
	c           Config
	dial        func(ctx context.Context, address string) (net.Conn, error)
	transaction uint16
	last        []byte // what the server has, as it was sent; nil: unknown
	source      string // who has registered; empty: the server has nothing
}

// New makes a client; Run lets it work.
func New(c Config) *Client {
	d := net.Dialer{Timeout: exchangeTimeout}
	return &Client{c: c, dial: func(ctx context.Context, address string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address)
	}}
}

// Run registers, and again before the registration ends or the server has lost it, until ctx ends; then it takes
// everything back, for leaveTimeout at most. A server that cannot be reached, or refuses, is tried again, less and
// less often.
func (c *Client) Run(ctx context.Context) {
	retry := retryLeast
	failed := false
	for ctx.Err() == nil {
		wait, err := c.register(ctx)
		switch {
		case err == nil && failed:
			c.c.Log.Infof("registered with the iSNS server %s again", c.c.Server)
			fallthrough
		case err == nil:
			retry, failed = retryLeast, false
		case ctx.Err() != nil:
		default:
			c.c.Log.WithField("err", err).Warnf("not registered with the iSNS server %s; next try in %v", c.c.Server, retry)
			wait, retry, failed = retry, min(2*retry, retryMost), true
		}
		pause(ctx, wait)
	}
	if c.source == "" {
		return
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := c.deregister(leave); err != nil {
		c.c.Log.WithField("err", err).Warnf("registration with the iSNS server %s not taken back; it ends by itself", c.c.Server)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// register tells the server everything, and returns when to do so again.
func (c *Client) register(ctx context.Context) (next time.Duration, err error) {
	conn, err := c.dial(ctx, c.c.Server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	nodes := c.c.Nodes(localAddr(conn))
	if len(nodes) == 0 {
		if c.source != "" {
			return refreshMost, c.deregisterOn(ctx, conn)
		}
		return refreshMost, nil
	}
	// What has changed replaces what the server had. What has not only shows that we live: replacing it would tell
	// initiators of a change.
	all := bytes.Join(registrations(c.c.Entity, registered, nodes, false), nil)
	period, first := registered, c.source == ""
	c.source = nodes[0].Name
	for _, m := range registrations(c.c.Entity, registered, nodes, !bytes.Equal(all, c.last)) {
		p, err := c.exchange(ctx, conn, DevAttrReg, m)
		if err != nil {
			c.last = nil // whatever it has now, the next attempt replaces it
			if refused := new(StatusError); first && errors.As(err, &refused) {
				c.source = ""
			}
			return 0, err
		}
		if p > 0 {
			period = p
		}
	}
	if first {
		c.c.Log.Infof("%d targets registered with the iSNS server %s", len(nodes), c.c.Server)
	}
	c.last = all
	return min(max(period/3, refreshLeast), refreshMost), nil
}

func (c *Client) deregister(ctx context.Context) error {
	conn, err := c.dial(ctx, c.c.Server)
	if err != nil {
		return err
	}
	defer conn.Close()
	return c.deregisterOn(ctx, conn)
}

func (c *Client) deregisterOn(ctx context.Context, conn net.Conn) error {
	_, err := c.exchange(ctx, conn, DevDereg, deregistration(c.c.Entity, c.source))
	if err == nil {
		c.last, c.source = nil, ""
	}
	return err
}

// localAddr is our end, as others see it in this network.
func localAddr(conn net.Conn) netip.Addr {
	a, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// exchange sends a message, numbered, and waits for its answer.
func (c *Client) exchange(ctx context.Context, conn net.Conn, f Function, message []byte) (period time.Duration, err error) {
	c.transaction++
	binary.BigEndian.PutUint16(message[8:], c.transaction)
	end := time.Now().Add(exchangeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	if err := conn.SetDeadline(end); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(message); err != nil {
		return 0, err
	}
	for range maxAnswerPDUs {
		m, err := readMessage(conn)
		switch {
		case err != nil:
			return 0, err
		case m.Function != f|response || m.Transaction != c.transaction:
			continue // what the server has to say by itself
		}
		if m.Sequence == 0 {
			if period, err = answered(f, m.Payload); err != nil {
				return 0, err
			}
		}
		if m.Flags&LastPDU != 0 {
			return period, nil
		}
	}
	return 0, errors.New("the iSNS server does not come to the end of its answer")
}

// readMessage reads one PDU, of 64 KiB at most.
func readMessage(r io.Reader) (*Message, error) {
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("answer of the iSNS server: %w", err)
	}
	var m Message
	if _, err := m.Parse(b); err == nil || !errors.Is(err, ErrShort) {
		return &m, err
	}
	b = append(b, make([]byte, binary.BigEndian.Uint16(b[4:]))...)
	if _, err := io.ReadFull(r, b[headerSize:]); err != nil {
		return nil, fmt.Errorf("answer of the iSNS server: %w", err)
	}
	_, err := m.Parse(b)
	return &m, err
}
