package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// A peer that has vanished is noticed after about a minute without traffic, if nobody pings it before.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// Listen takes iSCSI connections on addr ("host:port").
func Listen(addr string) (iscsi.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err // net says it all: listen tcp ADDR: cause
	}
	return &listener{tl: l.(*net.TCPListener)}, nil
}

// A listener is an iscsi.Listener on TCP.
type listener struct {
	tl *net.TCPListener
	mu sync.Mutex // one Accept at a time has the deadline
}

// Accept implements iscsi.Listener. It disables Nagle's algorithm, as Go does by default: a batch leaves as
// a whole.
func (l *listener) Accept(ctx context.Context) (iscsi.TargetDatamover, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = l.tl.SetDeadline(past)
		close(interrupted)
	})
	nc, err := l.tl.Accept()
	if !stop() {
		<-interrupted
		_ = l.tl.SetDeadline(time.Time{}) // of a closed listener: the next Accept tells
	}
	switch {
	case err == nil:
		return NewTarget(nc), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("accept on %v: %w", l.tl.Addr(), context.Cause(ctx))
	}
	return nil, err
}

// Addr implements iscsi.Listener.
func (l *listener) Addr() net.Addr { return l.tl.Addr() }

// Transport implements iscsi.Listener.
func (l *listener) Transport() string { return "tcp" }

// Register implements iscsi.Listener: the system copies from any memory.
func (l *listener) Register([]byte) error { return nil }

// Unregister implements iscsi.Listener.
func (l *listener) Unregister([]byte) error { return nil }

// Close implements iscsi.Listener.
func (l *listener) Close() error { return l.tl.Close() }

// A Dialer opens TCP connections; it is an initiator.Transport.
type Dialer struct{ net.Dialer }

// Name is "tcp".
func (d *Dialer) Name() string { return "tcp" }

// Dial connects to host:port.
func (d *Dialer) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	nd := d.Dialer
	if !nd.KeepAliveConfig.Enable && nd.KeepAlive == 0 {
		nd.KeepAliveConfig = keepAlive
	}
	nc, err := nd.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err // net says it all: dial tcp ADDR: cause
	}
	return NewInitiator(nc), nil
}
