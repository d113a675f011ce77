package tcp

import (
	"context"
	"net"

	"github.com/goiser/goiser/iscsi"
)

// Listen takes iSCSI connections on addr ("host:port").
func Listen(addr string) (iscsi.Listener, error) { panic("not written") }

// NewTarget makes the target's end of a connection of any kind (tests use net.Pipe).
func NewTarget(c net.Conn) iscsi.TargetDatamover { panic("not written") }

// NewInitiator makes the initiator's end.
func NewInitiator(c net.Conn) iscsi.InitiatorDatamover { panic("not written") }

// A Dialer opens TCP connections; it is an initiator.Transport.
type Dialer struct{ net.Dialer }

// Name is "tcp".
func (d *Dialer) Name() string { return "tcp" }

// Dial connects to host:port.
func (d *Dialer) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	panic("not written")
}
