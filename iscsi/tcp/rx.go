package tcp

import (
	"fmt"
	"io"

	"github.com/goiser/goiser/iscsi"
)

const (
	// readMin is the least room in the buffer that is worth a read.
	readMin = 4 << 10
	// directMin is the least piece of a task's buffer that is worth a read of its own.
	directMin = 4 << 10
)

// An rxState is how far the receiver is in a PDU.
//
//	header ──► body ──► header         a PDU that is taken as a whole from the buffer
//	   └─► direct ──► trailer ──► header   data that goes to where it belongs as it comes
type rxState uint8

const (
	rxHeader rxState = iota
	rxBody
	rxDirect
	rxTrailer
)

// A receiver parses the stream. buf[r:w] has come and is not parsed yet.
type receiver struct {
	buf   []byte
	r, w  int
	need  int  // bytes that must come behind w before parsing can go on
	views bool // events since the last Flush point into buf
	limit uint32

	state  rxState
	header int             // size of the headers of the PDU, with digest, bytes
	data   uint32          // its DataSegmentLength
	t      *iscsi.Transfer // direct: whose data it is
	dst    cursor          // direct: where it goes; no buffers: nowhere
	left   int             // direct: data still to come, bytes
	crc    iscsi.Digest
}

// grow makes the buffer hold any PDU with a data segment of up to limit bytes. Views of the old one stay.
func (rx *receiver) grow(limit uint32) {
	rx.limit = limit
	if size := int(limit) + pduOverhead; size > len(rx.buf) {
		buf := make([]byte, size)
		rx.w = copy(buf, rx.buf[rx.r:rx.w])
		rx.r, rx.buf, rx.views = 0, buf, false
	}
}

// room is where the next bytes go: at least need of them.
func (rx *receiver) room() []byte {
	switch free := len(rx.buf) - rx.w; {
	case rx.views && free >= rx.need, !rx.views && rx.r == 0 && free >= rx.need:
	case rx.views: // a caller that waits twice without Flush keeps its views
		rx.views = false
		buf := make([]byte, len(rx.buf))
		rx.w, rx.r, rx.buf = copy(buf, rx.buf[rx.r:rx.w]), 0, buf
	case rx.r == rx.w:
		rx.r, rx.w = 0, 0
	case free < max(rx.need, readMin):
		rx.w, rx.r = copy(rx.buf, rx.buf[rx.r:rx.w]), 0
	}
	return rx.buf[rx.w:]
}

// read takes bytes from the connection, once.
func (c *conn) read() error {
	rx := &c.rx
	var p []byte
	direct := false
	if rx.state == rxDirect {
		p = rx.dst.peek(rx.left)
		direct = len(p) >= directMin
	}
	if !direct {
		p = rx.room()
	}
	n, err := c.nc.Read(p)
	if direct {
		c.take(n)
	} else {
		rx.w += n
	}
	if n > 0 {
		return nil // the error, if any, comes again
	}
	if err == io.EOF && (rx.state != rxHeader || rx.r != rx.w) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// take accounts for n bytes of data that are in dst now, or are dropped.
func (c *conn) take(n int) {
	rx := &c.rx
	for n > 0 {
		p := rx.dst.next(n)
		if len(p) == 0 {
			panic("iscsi over tcp: data placed beyond the task's buffers")
		}
		if c.p.DataDigest {
			rx.crc = rx.crc.Add(p)
		}
		rx.left -= len(p)
		n -= len(p)
	}
}

// parse makes events of what has come, as far as evs has room.
func (c *conn) parse(evs []iscsi.Event) int {
	n := 0
	for {
		n = c.takeDue(evs, n)
		switch {
		case n == len(evs), c.err != nil, c.choked():
			return n
		case n > 0 && !c.enabled:
			// The next PDU may already be of full-feature phase, with digests: Enable comes first.
			return n
		}
		ev, more := false, false
		var err error
		switch c.rx.state {
		case rxHeader:
			more, err = c.takeHeader()
		case rxBody:
			ev, more, err = c.takeBody(&evs[n])
		case rxDirect:
			more = c.takeDirect()
		case rxTrailer:
			ev, more, err = c.takeTrailer(&evs[n])
		}
		if err != nil {
			c.fail(err)
			continue
		}
		if ev {
			n++
		}
		if more {
			return c.takeDue(evs, n)
		}
	}
}

// lack notes that n bytes must be in the buffer and says whether they are not.
func (rx *receiver) lack(n int) bool {
	rx.need = n - (rx.w - rx.r)
	return rx.need > 0
}

// checkLength refuses a data segment that is longer than what we have declared.
func (rx *receiver) checkLength(bhs *[iscsi.BHSSize]byte) error {
	if rx.data <= rx.limit {
		return nil
	}
	return &iscsi.WireError{
		What:   fmt.Sprintf("%v: data segment of %d bytes, at most %d", iscsi.OpcodeOf(bhs), rx.data, rx.limit),
		Offset: 5, Err: iscsi.ErrLength,
	}
}

// takeHeader checks a header and decides where its data goes.
func (c *conn) takeHeader() (more bool, err error) {
	rx := &c.rx
	if rx.lack(iscsi.BHSSize) {
		return true, nil
	}
	bhs := (*[iscsi.BHSSize]byte)(rx.buf[rx.r:])
	n := iscsi.BHSSize + iscsi.AHSLengthOf(bhs)
	rx.header, rx.data = n, iscsi.DataLengthOf(bhs)
	if c.enabled && c.p.HeaderDigest {
		rx.header += iscsi.DigestSize
	} else if err := rx.checkLength(bhs); err != nil {
		return false, err
	}
	if rx.lack(rx.header) {
		return true, nil
	}
	if rx.header > n {
		// Without a header nobody knows where the next PDU begins: at ErrorRecoveryLevel 0 the
		// connection ends (RFC 7143, 7.8).
		h := rx.buf[rx.r : rx.r+rx.header]
		if iscsi.Digest(0).Add(h[:n]) != iscsi.DigestFrom(h[n:]) {
			return false, fmt.Errorf("header: %w", ErrDigest)
		}
		if err := rx.checkLength(bhs); err != nil {
			return false, err
		}
	}
	rx.state = rxBody
	direct, err := c.role.direct(bhs, rx.data)
	if err != nil || !direct {
		return false, err
	}
	rx.state, rx.left, rx.crc = rxDirect, int(rx.data), 0
	rx.r += rx.header
	return false, nil
}

// trailer is the size of padding and data digest behind a data segment of n bytes: no data, no digest
// (RFC 7143, 11.2.3).
func (c *conn) trailer(n int) int {
	t := iscsi.Pad4(n) - n
	if n > 0 && c.enabled && c.p.DataDigest {
		t += iscsi.DigestSize
	}
	return t
}

// takeBody delivers a PDU that is in the buffer as a whole.
func (c *conn) takeBody(ev *iscsi.Event) (got, more bool, err error) {
	rx := &c.rx
	n := int(rx.data)
	size := rx.header + n + c.trailer(n)
	if rx.lack(size) {
		return false, true, nil
	}
	pdu := rx.buf[rx.r : rx.r+size : rx.r+size]
	bhs := (*[iscsi.BHSSize]byte)(pdu)
	*ev = iscsi.Event{
		Kind: iscsi.EventPDU,
		BHS:  bhs,
		AHS:  pdu[iscsi.BHSSize : iscsi.BHSSize+iscsi.AHSLengthOf(bhs)],
		Data: pdu[rx.header : rx.header+n],
	}
	if n > 0 && c.enabled && c.p.DataDigest {
		end := rx.header + iscsi.Pad4(n)
		ev.DigestError = iscsi.Digest(0).Add(pdu[rx.header:end]) != iscsi.DigestFrom(pdu[end:])
	}
	rx.r += size
	rx.state = rxHeader
	got, err = c.role.arrived(ev)
	rx.views = rx.views || got
	return got, false, err
}

// takeDirect moves data from the buffer to where it belongs.
func (c *conn) takeDirect() (more bool) {
	rx := &c.rx
	for rx.left > 0 && rx.r < rx.w {
		src := rx.buf[rx.r:min(rx.w, rx.r+rx.left)]
		rx.r += len(src)
		if rx.dst.bufs == nil {
			if c.p.DataDigest {
				rx.crc = rx.crc.Add(src)
			}
			rx.left -= len(src)
			continue
		}
		for len(src) > 0 {
			n := copy(rx.dst.peek(len(src)), src)
			if n == 0 {
				panic("iscsi over tcp: no room for data that had been checked")
			}
			src = src[n:]
			c.take(n)
		}
	}
	if rx.left > 0 {
		rx.need = 1
		return true
	}
	rx.state = rxTrailer
	return false
}

// takeTrailer ends a direct PDU.
func (c *conn) takeTrailer(ev *iscsi.Event) (got, more bool, err error) {
	rx := &c.rx
	n := c.trailer(int(rx.data))
	if rx.lack(n) {
		return false, true, nil
	}
	if rx.data > 0 && c.p.DataDigest {
		end := n - iscsi.DigestSize
		b := rx.buf[rx.r : rx.r+n]
		if rx.crc.Add(b[:end]) != iscsi.DigestFrom(b[end:]) {
			// The data may be anywhere in the task's buffers by now. Ending the connection ends the
			// task without touching the medium, which is session recovery (RFC 7143, 7.8, 7.1.4.4).
			return false, false, fmt.Errorf("data of task %#x: %w", rx.taskTag(), ErrDigest)
		}
	}
	rx.r += n
	rx.state = rxHeader
	got, err = c.role.placed(ev)
	rx.t, rx.dst = nil, cursor{}
	return got, false, err
}

func (rx *receiver) taskTag() uint32 {
	if rx.t == nil {
		return iscsi.ReservedTag
	}
	return rx.t.ITT
}

// divert makes the rest of the data that is coming in for t go nowhere.
func (rx *receiver) divert(t *iscsi.Transfer) {
	if rx.t == t {
		rx.dst = cursor{}
	}
}

// forget is divert for a task that has ended: nobody is told of the PDU's end.
func (rx *receiver) forget(t *iscsi.Transfer) {
	rx.divert(t)
	if rx.t == t {
		rx.t = nil
	}
}
