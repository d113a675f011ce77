package tcp

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goiser/goiser/iscsi"
)

const (
	// maxLoginData is the default MaxRecvDataSegmentLength, which holds until Enable (RFC 7143, 13.12).
	maxLoginData = 8192
	// maxRecvData is the MaxRecvDataSegmentLength that we declare: the receive buffer holds one such PDU.
	maxRecvData = 256 << 10
	// maxAHS is what TotalAHSLength can say: 255 words (RFC 7143, 11.2.1.5).
	maxAHS = 255 * 4
	// pduOverhead is the most that a PDU has beside its data: headers, two digests and padding.
	pduOverhead = iscsi.BHSSize + maxAHS + 2*iscsi.DigestSize + 3
	// writeTimeout is how long a peer may take nothing at all of what waits for it.
	writeTimeout = 30 * time.Second
	// minMaxSend is the least MaxRecvDataSegmentLength a peer can declare (RFC 7143, 13.12).
	minMaxSend = 512
	// defaultMaxBurst is MaxBurstLength without negotiation (RFC 7143, 13.13).
	defaultMaxBurst = 256 << 10
)

// past is a deadline that has passed whatever the clock says.
var past = time.Unix(1, 0)

// A ProtocolError says how the peer has broken the rules of data transfer. At ErrorRecoveryLevel 0 there is
// nothing to recover within a connection: it ends, and the session with it (RFC 7143, 7.1.4.4, 7.7 and 7.9).
type ProtocolError struct {
	PDU  iscsi.Opcode
	ITT  uint32
	What string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("%v for task %#x: %s", e.PDU, e.ITT, e.What)
}

// ErrDigest is the cause when a header digest, or the data digest of solicited data, does not match.
var ErrDigest = errors.New("digest mismatch")

// A role is what the two ends do differently with what arrives.
type role interface {
	// direct looks at a header whose data segment of n bytes has not been taken yet. If the data goes
	// straight to a task's buffers it sets rx.dst and says true.
	direct(bhs *[iscsi.BHSSize]byte, n uint32) (bool, error)
	// placed comes when all data of a direct PDU is where it belongs; ev is filled and true returned if
	// the engine must be told.
	placed(ev *iscsi.Event) (bool, error)
	// arrived sees every other PDU; false means that it is not for the engine.
	arrived(ev *iscsi.Event) (bool, error)
	// died ends what the role keeps, once the connection is over.
	died()
}

// flags in iscsi.TransferState.Flags.
const (
	flagFinished = 1 << iota // release as soon as nothing refers to it
	flagGetting              // target: a GetData is going on
	flagCommand              // initiator: in use; DM.Offset counts what has been received, bytes
	flagDetached             // initiator: the caller's buffers are not ours any more
)

// Words in iscsi.TransferState.Words.
const (
	wordStart = iota // target: the task offset at which Bufs begins, bytes
	wordGot          // target: bytes of the GetData that have come
	wordOpen         // R2Ts that have not been answered
	wordBurst        // target: bytes in the present Data-In sequence
)

// A happening is an event that the datamover made itself.
type happening struct {
	kind iscsi.EventKind
	t    *iscsi.Transfer
}

// A conn is what both ends have in common. All but Wake belongs to the loop's goroutine, and the batch to the
// writer's while busy is set.
type conn struct {
	nc   net.Conn
	raw  syscall.RawConn // set if we may write without blocking
	role role

	enabled bool
	p       iscsi.Params // MaxSendData is what our data PDUs keep to
	seq     *iscsi.Sequence

	err    error
	due    []happening
	dueOut int // due[:dueOut] has been delivered

	woken     atomic.Bool
	bell      chan struct{}
	armed     bool // the read deadline is readUntil, unless woken
	readUntil time.Time
	rx        receiver
	tx        sender
	writer    writer
	vec       vector
}

func (c *conn) init(nc net.Conn, r role) {
	c.nc, c.role = nc, r
	c.bell = make(chan struct{}, 1)
	c.raw = rawConn(nc)
	c.rx.limit = maxLoginData
	c.rx.buf = make([]byte, maxLoginData+pduOverhead)
	c.writer.init(c)
}

// Traits describes TCP.
func (c *conn) Traits() iscsi.Traits {
	return iscsi.Traits{
		Name:         "tcp",
		MaxLoginData: maxLoginData,
		MaxRecvData:  maxRecvData,
		// Unsolicited data saves a round trip up to FirstBurstLength, so the answer is No unless the
		// initiator insists.
		DefaultInitialR2T: false,
	}
}

// LocalAddr is our end of the connection, RemoteAddr the peer's.
func (c *conn) LocalAddr() net.Addr  { return c.nc.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Enable implements iscsi.Datamover: digests, lengths and the large receive buffer from here on.
func (c *conn) Enable(p *iscsi.Params, seq *iscsi.Sequence) error {
	if c.err != nil {
		return c.err
	}
	if p.MaxRecvData > maxRecvData {
		return fmt.Errorf("enable: MaxRecvData %d: %w", p.MaxRecvData, iscsi.ErrLength)
	}
	c.p, c.seq, c.enabled = *p, seq, true
	if c.p.MaxRecvData == 0 {
		c.p.MaxRecvData = maxLoginData
	}
	if c.p.MaxBurstLength == 0 {
		c.p.MaxBurstLength = defaultMaxBurst
	}
	c.p.MaxOutstandingR2T = max(c.p.MaxOutstandingR2T, 1)
	c.SetMaxSendData(p.MaxSendData)
	c.rx.grow(c.p.MaxRecvData)
	return nil
}

// SetMaxSendData implements iscsi.Resizer.
func (c *conn) SetMaxSendData(n uint32) {
	c.p.MaxSendData = maxLoginData
	if n >= minMaxSend {
		// A multiple of four spares the padding of all but the last PDU.
		c.p.MaxSendData = min(n, maxDataPDU) &^ 3
	}
}

// Wait implements iscsi.Datamover.
func (c *conn) Wait(evs []iscsi.Event, deadline time.Time) (int, error) {
	for woken := false; ; {
		c.reap()
		if n := c.parse(evs); n > 0 {
			return n, nil
		}
		c.pump() // answers to R2Ts and further R2Ts, which no Flush would follow
		if c.dueOut < len(c.due) {
			continue
		}
		if c.err != nil {
			return 0, c.err
		}
		if woken {
			return 0, nil
		}
		woken = c.block(deadline)
	}
}

// takeDue moves what is due to evs[n:].
func (c *conn) takeDue(evs []iscsi.Event, n int) int {
	for n < len(evs) && c.dueOut < len(c.due) {
		evs[n] = iscsi.Event{Kind: c.due[c.dueOut].kind, Transfer: c.due[c.dueOut].t}
		c.due[c.dueOut] = happening{}
		c.dueOut++
		n++
	}
	if c.dueOut == len(c.due) {
		c.due, c.dueOut = c.due[:0], 0
	}
	return n
}

// Wake implements iscsi.Datamover. The order makes that no wake-up is lost: block sets its deadline first and
// looks at woken after, Wake the other way round, so that either block sees woken or the read ends at once.
func (c *conn) Wake() {
	if c.woken.Swap(true) {
		return
	}
	_ = c.nc.SetReadDeadline(past) // of a closed connection: nobody waits there
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

// arm makes a read end at deadline or earlier. A deadline that is early costs one more turn, a change of
// deadline costs each round, so the present one stays if it will do.
func (c *conn) arm(deadline time.Time) {
	if c.armed {
		if c.readUntil.Equal(deadline) ||
			!c.readUntil.IsZero() && (deadline.IsZero() || c.readUntil.Before(deadline)) {
			return
		}
	}
	c.armed, c.readUntil = true, deadline
	_ = c.nc.SetReadDeadline(deadline) // an error means closed; the read tells
}

// block waits for bytes, a wake-up or the deadline. It reports whether it was one of the latter two.
func (c *conn) block(deadline time.Time) bool {
	if c.choked() {
		return c.waitBell(deadline)
	}
	c.arm(deadline)
	if c.woken.Swap(false) {
		c.armed = false
		return true
	}
	err := c.read()
	if err == nil {
		return false
	}
	if ne, ok := err.(net.Error); !ok || !ne.Timeout() { // net.Conn returns it bare, and errors.As allocates
		c.fail(err)
		return false
	}
	c.armed = false
	return c.woken.Swap(false) || !deadline.IsZero() && !time.Now().Before(deadline)
}

// waitBell is block while nothing may be read: until the writer has made room (it wakes us).
func (c *conn) waitBell(deadline time.Time) bool {
	var expired <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-c.bell:
	case <-expired:
		return true
	}
	c.armed = false // Wake has changed it
	return c.woken.Swap(false)
}

// release ends a transfer's use. What Received tells stays until the transfer's next command.
func (c *conn) release(t *iscsi.Transfer) {
	var received uint32
	if t.DM.Flags&flagCommand != 0 {
		received = t.DM.Offset
	}
	t.DM = iscsi.TransferState{Offset: received}
	c.due = append(c.due, happening{iscsi.EventReleased, t})
}

// finish says that nothing more will be queued for t: it is released when nothing refers to it.
func (c *conn) finish(t *iscsi.Transfer) {
	t.DM.Flags |= flagFinished
	if t.DM.Pending == 0 {
		c.release(t)
	}
}

// unref drops one reference of the queue or the batch to t's memory.
func (c *conn) unref(t *iscsi.Transfer) {
	t.DM.Pending--
	if t.DM.Pending == 0 && t.DM.Flags&flagFinished != 0 {
		c.release(t)
	}
}

// fail ends the connection for the reason err: nothing is read or written any more.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("iscsi over tcp, peer %v: %w", c.nc.RemoteAddr(), err)
	_ = c.nc.Close()
	c.writer.end()
	c.tx.drop(c)
	c.role.died()
}

// Close implements iscsi.Datamover.
func (c *conn) Close() error {
	c.fail(net.ErrClosed)
	c.rx.buf = nil
	return nil
}
