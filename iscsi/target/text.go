package target

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// maxRequestText bounds the text, in bytes, that an initiator sends in one exchange.
const maxRequestText = 64 << 10

// A textExchange is one negotiation sequence in full-feature phase (RFC 7143, 11.10). A session has one at
// a time.
type textExchange struct {
	open     bool
	itt, ttt uint32
	in       []byte // of requests with the C bit so far
	out      []byte // answer that has not been sent
}

// textRequest takes a Text Request.
func (c *conn) textRequest(ev *iscsi.Event, windowed bool) {
	var req iscsi.TextRequest
	if err := req.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	c.openSlot(windowed)
	x := &c.exchange
	if req.TTT == iscsi.ReservedTag { // a new exchange ends the old one
		*x = textExchange{open: true, itt: req.ITT, ttt: x.ttt + 1}
		if x.ttt == iscsi.ReservedTag {
			x.ttt = 0
		}
	}
	if err := c.takeText(&req, ev.Data); err != nil {
		*x = textExchange{ttt: x.ttt}
		c.reject(err, ev.BHS)
		return
	}
	c.sendText(&req)
}

// takeText adds a request's text to the exchange, and answers when it is whole.
func (c *conn) takeText(req *iscsi.TextRequest, data []byte) *iscsi.RejectError {
	x := &c.exchange
	bad := func(format string, args ...any) *iscsi.RejectError {
		return &iscsi.RejectError{Reason: iscsi.RejectProtocolError, What: "Text Request: " + fmt.Sprintf(format, args...)}
	}
	switch {
	case req.ITT == iscsi.ReservedTag:
		return bad("reserved task tag")
	case !x.open, req.TTT != iscsi.ReservedTag && req.TTT != x.ttt, req.ITT != x.itt:
		return bad("no exchange %08x with task tag %08x", req.TTT, req.ITT)
	case req.Final && req.Continue:
		return bad("both F and C are set")
	case len(x.out) > 0:
		if len(data) > 0 {
			return bad("text in the middle of our answer")
		}
		return nil
	case len(x.in)+len(data) > maxRequestText:
		return bad("more than %d bytes", maxRequestText)
	}
	x.in = append(x.in, data...)
	if req.Continue {
		return nil
	}
	kvs, err := iscsi.ParseText(x.in)
	if err != nil {
		return bad("%v", err)
	}
	x.in = nil
	if x.out, err = c.answerText(x.out, kvs); err != nil {
		return bad("%v", err)
	}
	return nil
}

// answerText appends the answers to the keys of a whole text. In full-feature phase the initiator may declare its
// MaxRecvDataSegmentLength and its alias; everything else that is known has had its time (RFC 7143, 13).
func (c *conn) answerText(out []byte, kvs []iscsi.KeyValue) ([]byte, error) {
	var asked []iscsi.KeyValue
	listed := false
	for _, kv := range kvs {
		switch {
		case kv.Key == "SendTargets" && listed:
			return nil, errors.New("SendTargets came twice")
		case kv.Key == "SendTargets":
			listed = true
			out = c.sendTargets(out, kv.Value)
		case kv.Key == "InitiatorAlias":
		case iscsi.IsLoginKey(kv.Key):
			out = iscsi.AppendText(out, iscsi.KeyValue{Key: kv.Key, Value: "Reject"})
		default:
			asked = append(asked, kv)
		}
	}
	answers, err := c.neg.Receive(asked)
	if err != nil {
		return nil, err
	}
	return iscsi.AppendText(out, answers...), c.redeclare()
}

// redeclare puts what the initiator may have declared into force.
func (c *conn) redeclare() error {
	now, err := c.neg.Result()
	if err != nil || now.MaxSendData == c.params.MaxSendData {
		return err
	}
	c.params.MaxSendData = now.MaxSendData
	if r, ok := c.dm.(iscsi.Resizer); ok {
		r.SetMaxSendData(now.MaxSendData)
	}
	return nil
}

// sendText answers a request with the next part of the answer. Parts end anywhere, also within a pair
// (RFC 7143, 6.2); all but the last have C set and a TTT to ask for the next with.
func (c *conn) sendText(req *iscsi.TextRequest) {
	x := &c.exchange
	r := iscsi.TextResponse{ITT: req.ITT, TTT: x.ttt}
	var part []byte
	if limit := c.maxData(); len(x.out) > limit {
		part, x.out = x.out[:limit], x.out[limit:]
		r.Continue = true
	} else {
		part, x.out = x.out, nil
		if r.Final = req.Final; r.Final {
			r.TTT = iscsi.ReservedTag
			*x = textExchange{ttt: x.ttt}
		}
	}
	r.DataLength = uint32(len(part))
	r.StatSN, r.ExpCmdSN, r.MaxCmdSN = c.nextStatSN(), c.seq.ExpCmdSN, c.seq.MaxCmdSN
	r.Put(&c.bhs)
	c.reply(part)
}

// reject sends a Reject (RFC 7143, 11.17) with the header of what it refuses.
func (c *conn) reject(err *iscsi.RejectError, bhs *[iscsi.BHSSize]byte) {
	c.ses.stats.rejects.Add(1)
	c.s.tallies.count(func(t *tallies) { t.rejects[err.Reason]++ })
	c.logEvent(eventReject).WithFields(logrus.Fields{"itt": iscsi.ITTOf(bhs), "err": err}).Warn("PDU rejected")
	r := iscsi.Reject{
		Reason:     err.Reason,
		DataLength: iscsi.BHSSize,
		StatSN:     c.nextStatSN(),
		ExpCmdSN:   c.seq.ExpCmdSN,
		MaxCmdSN:   c.seq.MaxCmdSN,
	}
	r.Put(&c.bhs)
	c.reply(bhs[:])
}

// sendTargets appends the answer to SendTargets (RFC 7143, appendix C). All is for discovery sessions,
// and nothing at all means the session's own target; what does not apply gets an empty list.
func (c *conn) sendTargets(b []byte, value string) []byte {
	var list []*Target
	switch own := c.ses.target; {
	case own != nil:
		if name, err := iscsi.ParseName(value); value == "" || err == nil && name == own.c.Name {
			if own = c.s.find(own.c.Name); own != nil { // as it is now
				list = []*Target{own}
			}
		}
	case value == "All":
		list = c.s.Targets()
	default:
		if name, err := iscsi.ParseName(value); err == nil {
			if t := c.s.find(name); t != nil {
				list = []*Target{t}
			}
		}
	}
	addresses := c.s.addresses(c)
	from := addrOf(c.dm.RemoteAddr())
	for _, t := range list {
		if !t.servedIn(c.portal.config.Tag) || !t.rights.allow(c.ses.initiator, from) { // what cannot be logged in to is not shown
			continue
		}
		b = iscsi.AppendText(b, iscsi.KeyValue{Key: "TargetName", Value: string(t.c.Name)})
		for _, a := range addresses {
			if t.servedIn(a.tag) {
				b = iscsi.AppendText(b, iscsi.KeyValue{Key: "TargetAddress", Value: a.String()})
			}
		}
	}
	return b
}
