package initiator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// Bounds of a discovery.
const (
	maxDiscoveryText  = 16 << 20 // bytes: room for 10000 targets with four portals each
	maxDiscoveryPairs = 1 << 20
	maxEmptyAnswers   = 32 // in a row: answers that go on without bringing anything
	discoveryLogout   = time.Second
	discoveryITT      = 2
)

// A TargetRecord is one answer of discovery (SendTargets).
type TargetRecord struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"` // "ip:port,tag"
}

// Discover asks the portal at address for its targets. They come in the target's order, each name once.
func Discover(ctx context.Context, tr Transport, address string, o Options) ([]TargetRecord, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	k, l, err := connect(ctx, tr, address, "", &o)
	if err != nil {
		return nil, err
	}
	d := &discovery{link: k, seq: l.seq, cmdSN: l.cmdSN, ttt: iscsi.ReservedTag}
	if err := k.dm.Enable(&l.params, &d.seq); err != nil {
		_ = k.dm.Close()
		return nil, fmt.Errorf("enter full-feature phase: %w", err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, o.CommandTimeout, late(o.CommandTimeout))
	defer stop()
	text, err := d.sendTargets(ctx)
	d.logout(ctx)
	if closing := k.dm.Close(); err == nil && closing != nil {
		o.Log.WithField("err", closing).Warn("discovery connection did not close in order")
	}
	if err != nil {
		return nil, fmt.Errorf("discover targets at %s: %w", address, err)
	}
	return parseTargets(text)
}

// A discovery is a discovery session in full-feature phase.
type discovery struct {
	*link
	seq   iscsi.Sequence
	cmdSN iscsi.CmdSN
	ttt   uint32
}

// sendTargets asks and collects the answer, however many PDUs it takes (RFC 7143, 11.10 and 11.11).
func (d *discovery) sendTargets(ctx context.Context) (text []byte, err error) {
	ask := iscsi.AppendText(nil, iscsi.KeyValue{Key: "SendTargets", Value: "All"})
	empty := 0
	for {
		(&iscsi.TextRequest{
			Final: true, DataLength: uint32(len(ask)), ITT: discoveryITT, TTT: d.ttt,
			CmdSN: d.cmdSN, ExpStatSN: d.seq.StatSN,
		}).Put(&d.bhs)
		d.cmdSN = d.cmdSN.Add(1)
		d.dm.Send(&d.bhs, ask)
		ask = nil
		if err := d.dm.Flush(); err != nil {
			return nil, err
		}
		rsp, part, err := d.answer(ctx)
		if err != nil {
			return nil, err
		}
		if len(text)+len(part) > maxDiscoveryText {
			return nil, violation("more than %d bytes of targets", maxDiscoveryText)
		}
		text = append(text, part...)
		if rsp.Final && !rsp.Continue {
			return text, nil
		}
		if empty++; len(part) > 0 {
			empty = 0
		}
		if d.ttt = rsp.TTT; d.ttt == iscsi.ReservedTag || empty > maxEmptyAnswers {
			return nil, violation("an unfinished answer that does not go on")
		}
	}
}

// answer waits for the Text Response; pings on the way are answered.
func (d *discovery) answer(ctx context.Context) (rsp iscsi.TextResponse, text []byte, err error) {
	for {
		ev, err := d.next(ctx)
		if err != nil {
			return rsp, nil, err
		}
		if ev.DigestError {
			return rsp, nil, violation("data digest of a %s", iscsi.OpcodeOf(ev.BHS))
		}
		switch op := iscsi.OpcodeOf(ev.BHS); op {
		case iscsi.OpTextResponse:
			if err := rsp.Parse(ev.BHS); err != nil {
				return rsp, nil, err
			}
			if rsp.ITT != discoveryITT {
				return rsp, nil, violation("Text Response with ITT %08x", rsp.ITT)
			}
			d.seq.StatSN = rsp.StatSN.Add(1)
			return rsp, ev.Data, nil
		case iscsi.OpNOPIn:
			if err := d.pong(ev); err != nil {
				return rsp, nil, err
			}
		case iscsi.OpAsync:
		case iscsi.OpReject:
			var rej iscsi.Reject
			_ = rej.Parse(ev.BHS)
			return rsp, nil, &iscsi.RejectError{Reason: rej.Reason, What: "SendTargets=All"}
		default:
			return rsp, nil, violation("%s in a discovery session", op)
		}
	}
}

func (d *discovery) pong(ev *iscsi.Event) error {
	var nop iscsi.NOPIn
	if err := nop.Parse(ev.BHS); err != nil || nop.TTT == iscsi.ReservedTag {
		return err
	}
	(&iscsi.NOPOut{Immediate: true, LUN: nop.LUN, ITT: iscsi.ReservedTag, TTT: nop.TTT, CmdSN: d.cmdSN, ExpStatSN: d.seq.StatSN}).Put(&d.bhs)
	d.dm.Send(&d.bhs, nil)
	return d.dm.Flush()
}

// logout takes leave. The list is there, so that nothing that goes wrong here matters.
func (d *discovery) logout(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, discoveryLogout)
	defer stop()
	(&iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutSession, ITT: discoveryITT + 1, CmdSN: d.cmdSN, ExpStatSN: d.seq.StatSN}).Put(&d.bhs)
	d.dm.Send(&d.bhs, nil)
	if d.dm.Flush() != nil {
		return
	}
	for {
		ev, err := d.next(ctx)
		if err != nil || iscsi.OpcodeOf(ev.BHS) == iscsi.OpLogoutResp {
			return
		}
	}
}

// parseTargets reads the answer to SendTargets (RFC 7143, Appendix C): each TargetName is followed by its
// addresses.
func parseTargets(text []byte) ([]TargetRecord, error) {
	kvs, err := iscsi.ParseTextLimit(text, maxDiscoveryPairs)
	if err != nil {
		return nil, fmt.Errorf("list of targets: %w", err)
	}
	var list []TargetRecord
	index := map[string]int{}
	at := -1
	for _, kv := range kvs {
		if strings.ContainsFunc(kv.Value, unprintable) {
			return nil, violation("%s=%.64q", kv.Key, kv.Value)
		}
		switch kv.Key {
		case "TargetName":
			i, known := index[kv.Value]
			if !known {
				i = len(list)
				index[kv.Value] = i
				list = append(list, TargetRecord{Name: kv.Value})
			}
			at = i
		case "TargetAddress":
			if at < 0 {
				return nil, violation("TargetAddress before TargetName")
			}
			list[at].Addresses = append(list[at].Addresses, kv.Value)
		case "SendTargets":
			return nil, errors.New("the portal answered SendTargets=" + kv.Value)
		}
	}
	return list, nil
}

func unprintable(r rune) bool { return r <= ' ' || r == 0x7f }
