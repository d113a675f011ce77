package target

import "github.com/goiser/goiser/iscsi"

// maxWindow is the largest command window: what initiators have receive buffers for by default.
const maxWindow = 128

// A window is a session's command window (RFC 7143, 4.2.2.1). ExpCmdSN and MaxCmdSN stand in the Sequence
// of the connection that works on the session, where its datamover reads them; see session.lock.
//
// A slot of the window is one command. It is taken when the command arrives and opens again
// (MaxCmdSN moves on) when its response is queued, so that the response itself carries the news. Because
// a response that has been queued may stay here as long as the peer does not read, slots are owed, not
// opened, while more than size responses have not left yet: commands and responses that a session can
// make us keep are at most 2*size.
type window struct {
	seq   *iscsi.Sequence
	size  uint32
	slots [maxWindow]slot

	leaving uint32 // responses queued that have not left
	owed    uint32 // slots to be opened when responses have left
	// late is set when MaxCmdSN moved without a response on its way that could carry it.
	late bool
}

// A slot is what is known of one CmdSN from ExpCmdSN on.
type slot struct {
	state slotState
	pdu   *heldPDU
}

type slotState uint8

const (
	slotEmpty   slotState = iota // not received
	slotHeld                     // received before its turn
	slotSkipped                  // to be taken as received: aborted before it came (RFC 7143, 11.5.5)
)

// A heldPDU is a request that came before its turn, copied.
type heldPDU struct {
	c      *conn // came here, and is delivered here
	bhs    [iscsi.BHSSize]byte
	ahs    []byte
	data   []byte
	remote iscsi.Remote
}

func (w *window) open(seq *iscsi.Sequence, first iscsi.CmdSN, size uint32) {
	w.seq, w.size = seq, size
	seq.ExpCmdSN, seq.MaxCmdSN = first, first.Add(size-1)
}

type verdict uint8

const (
	deliver verdict = iota
	hold            // before its turn: hand it to keep
	drop            // outside the window, or a duplicate
)

// arrive judges a non-immediate request and, if it is its turn, moves ExpCmdSN on.
func (w *window) arrive(sn iscsi.CmdSN) verdict {
	switch {
	case !sn.InWindow(w.seq.ExpCmdSN, w.seq.MaxCmdSN) || w.at(sn).state != slotEmpty:
		return drop
	case sn != w.seq.ExpCmdSN:
		return hold
	}
	w.seq.ExpCmdSN++
	return deliver
}

func (w *window) at(sn iscsi.CmdSN) *slot { return &w.slots[uint32(sn)%maxWindow] }

// keep stores a request for which arrive said hold.
func (w *window) keep(sn iscsi.CmdSN, p *heldPDU) { *w.at(sn) = slot{slotHeld, p} }

// next is the held request whose turn has come, or nil. One that came on another connection than c stays
// where it is, and that connection is returned.
func (w *window) next(c *conn) (*heldPDU, *conn) {
	for {
		s := w.at(w.seq.ExpCmdSN)
		p := s.pdu
		switch {
		case s.state == slotEmpty:
			return nil, nil
		case p != nil && p.c != c:
			return nil, p.c
		}
		*s = slot{}
		w.seq.ExpCmdSN++
		if p != nil {
			return p, nil
		}
		w.release()
		w.late = true
	}
}

// skip takes sn, if it lies in the window and has not had its turn, as received. It returns what was held
// of it, if anything, for the caller to forget. The caller calls next afterwards.
func (w *window) skip(sn iscsi.CmdSN) (p *heldPDU, ok bool) {
	if !sn.InWindow(w.seq.ExpCmdSN, w.seq.MaxCmdSN) {
		return nil, false
	}
	p = w.at(sn).pdu
	*w.at(sn) = slot{state: slotSkipped}
	return p, true
}

// release opens the slot of a request that needs it no more.
func (w *window) release() { w.seq.MaxCmdSN++ }

// respond opens the slot of a command whose response is about to be queued; left must follow.
func (w *window) respond() {
	w.leaving++
	if w.leaving > w.size {
		w.owed++
		return
	}
	w.release()
}

// left notes that a response has left.
func (w *window) left() {
	w.leaving--
	if w.owed > 0 {
		w.owed--
		w.release()
		w.late = true
	}
}
