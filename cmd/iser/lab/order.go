package lab

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// Scenarios of order: what must be in memory, and whose memory it still is, when a message has come.

// rough is a network that loses, doubles and reorders a few packets, as far as a session outlives it.
func rough() link.Weather {
	w := fair()
	w.Loss, w.Duplicate, w.Reorder, w.Corrupt = 0.01, 0.01, 0.02, 0.002
	return w
}

func writeThenSend() *Scenario {
	return &Scenario{
		Name: "write-then-send", Title: "The target posts the response without waiting for the RDMA Write",
		Controls: []Control{{
			Name: "late-placement", Breaks: "the device delivers a Send before the data of the RDMA Writes before it is in memory",
			plant: func(s *settings) { s.hostFaults.EarlySend = true },
			sees:  "read ",
		}},
		set: func(s *settings, _ *rand.Rand) { s.weather = rough() },
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			var all []extent
			for range 4 {
				x := h.extent(sector << w.rng.IntN(8))
				if !h.must("write", h.write(ctx, x)) {
					return
				}
				all = append(all, x)
			}
			for range 2 {
				together(len(all), func(i int) { h.must("read", h.read(ctx, all[i])) })
			}
		},
	}
}

// isAck reports whether a packet is a mere acknowledgement.
func isAck(p wire.Packet) bool {
	if p.Opcode() != wire.Acknowledge {
		return false
	}
	s, _ := p.AETH()
	return s.IsAck()
}

func lostSendAck() *Scenario {
	return &Scenario{
		Name: "lost-send-ack", Title: "The request's acknowledgement is lost, the response arrives, and the device sends the request again",
		Controls: []Control{{
			Name: "memory-reused", Breaks: "the initiator uses the memory of a Send again once the response is there",
			plant: func(s *settings) { s.hostFaults.Recycled = true },
			sees:  "has changed before it has completed",
		}, {
			Name: "key-ended", Breaks: "the initiator invalidates the command's key once the response is there",
			plant: func(s *settings) { s.hostLayer = endsKeysEarly() },
			sees:  "before the Send that offered it has completed",
		}},
		set: func(s *settings, _ *rand.Rand) {},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			first := h.extent(sector << w.rng.IntN(4)) // inline: it has no key
			if !h.must("write", h.write(ctx, first)) {
				return
			}
			before := h.roce.Counters().QP.Retransmits
			left := 2 + w.rng.IntN(5)
			w.links[targetAddr().Addr()].lose(func(_ netip.Addr, p wire.Packet) bool {
				if left == 0 || !isAck(p) {
					return true
				}
				left--
				return false
			})
			var all []extent
			for range 9 {
				all = append(all, h.extent(sector<<w.rng.IntN(7)))
			}
			h.must("read", h.read(ctx, first)) // alone: nothing behind it brings an acknowledgement of both
			together(3, func(i int) {
				for _, x := range all[3*i : 3*i+3] {
					h.must("read", h.read(ctx, x))
					h.must("write", h.write(ctx, x))
				}
			})
			w.sleep(time.Second) // until nothing is due any more
			if h.roce.Counters().QP.Retransmits == before {
				w.fail("%s sent nothing again: the run proves nothing", h.name)
			}
			h.must("read", h.read(ctx, first))
		},
	}
}

// endsKeysEarly is an initiator that invalidates a read's key as soon as the response is there.
func endsKeysEarly() *layer {
	keys := make(map[uint32]uint32) // by task
	l := &layer{}
	l.posting = func(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wrs[i].Op == rdma.OpSend {
				if hdr, itt, ok := isA(l.bytes(wrs[i].SGL[0]), iscsi.OpSCSICommand); ok {
					keys[itt] = hdr.ReadSTag | hdr.WriteSTag
				}
			}
		}
		return wrs
	}
	l.polled = func(_ *layerCQ, cs []rdma.Completion, n int) int {
		for i := range cs[:n] {
			q := l.qps[cs[i].QPNum]
			if !cs[i].Recv || cs[i].Status != rdma.Success || q == nil {
				continue
			}
			if _, itt, ok := isA(q.received(&cs[i]), iscsi.OpSCSIResponse); ok && keys[itt] != 0 {
				_, _ = q.QueuePair.PostSend([]rdma.SendWR{{ID: ownID, Op: rdma.OpLocalInv, InvalidateKey: keys[itt]}})
				delete(keys, itt)
			}
		}
		return n
	}
	return l
}

func duplicateRead() *Scenario {
	return &Scenario{
		Name: "duplicate-read", Title: "A retransmitted RDMA Read request is executed again after the buffer has changed owner",
		Controls: []Control{{
			Name: "early-completion", Breaks: "the target takes an RDMA Read as done before the data is there, and answers",
			plant: func(s *settings) { s.targetLayer = completesReadsEarly() },
			sees:  "",
		}},
		set: func(s *settings, _ *rand.Rand) {
			s.wrapStore, s.stable, s.message = slow(0, 50*time.Microsecond), true, 8<<10
		},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			first := h.extent(4096)
			if !h.must("write", h.write(ctx, first)) {
				return
			}
			left, rng := 2+w.rng.IntN(4), rand.New(rand.NewPCG(w.seed, 1))
			w.links[hostAddr(0)].lose(func(_ netip.Addr, p wire.Packet) bool {
				if left > 0 && p.Opcode().Is(wire.Response|wire.Read) && rng.IntN(3) > 0 {
					left--
					return false
				}
				return true
			})
			before := h.roce.Counters().QP.Duplicates
			var all []extent
			for i := range 4 {
				n := 8<<10 + sector*w.rng.IntN(48)
				all = append(all, extent{int64(i*64<<10 + sector*w.rng.IntN(16)), n})
			}
			for range 2 {
				// Reads go along, so that acknowledgements come from behind the Reads whose responses are missing.
				together(len(all)+2, func(i int) {
					if i < len(all) {
						h.must("write", h.write(ctx, all[i]))
					} else {
						h.must("read", h.read(ctx, extent{int64(i) * 64 << 10, 4096}))
					}
				})
				together(len(all), func(i int) { h.must("read", h.read(ctx, all[i])) })
			}
			if h.roce.Counters().QP.Duplicates == before {
				w.fail("%s served no request twice: the run proves nothing", h.name)
			}
		},
	}
}

// completesReadsEarly is a target that takes RDMA Reads as done when they are posted.
func completesReadsEarly() *layer {
	l := &layer{}
	l.posting = func(q *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wr := &wrs[i]; wr.Op == rdma.OpRead {
				q.cq.early = append(q.cq.early, rdma.Completion{ID: wr.ID, QPNum: q.Num(), ByteLen: uint32(rdma.Length(wr.SGL))})
				wr.ID = ownID
			}
		}
		if len(q.cq.early) > 0 {
			q.cq.CompletionQueue.Wake()
		}
		return wrs
	}
	return l
}

func inlineKey() *Scenario {
	return &Scenario{
		Name: "inline-key", Title: "A write whose data goes inline advertises a key all the same, and the peer invalidates it",
		Controls: []Control{{
			Name: "key-sent", Breaks: "the initiator puts a key on the wire with inline data",
			plant: func(s *settings) { s.hostLayer = sendsKeysInline() },
			sees:  "nothing to do with it",
		}},
		set: func(s *settings, rng *rand.Rand) {
			s.weather = rough()
			s.config.MaxImmediate = pick(rng, 1024, 4096, 8192)
		},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			for range 6 {
				x := h.extent(sector * (1 + w.rng.IntN(w.config.MaxImmediate/sector)))
				if !h.must("write", h.write(ctx, x)) || !h.must("read", h.read(ctx, x)) {
					return
				}
			}
		},
	}
}

// sendsKeysInline is an initiator that names a key in the header of inline writes.
func sendsKeysInline() *layer {
	l := &layer{}
	l.posting = func(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wrs[i].Op != rdma.OpSend {
				continue
			}
			b := l.bytes(wrs[i].SGL[0])
			_, bhs, ok := pdu(b)
			if !ok || iscsi.OpcodeOf(bhs) != iscsi.OpSCSICommand || iscsi.DataLengthOf(bhs) == 0 {
				continue
			}
			r := l.regions[slices.IndexFunc(l.regions, func(r *layerRegion) bool { return r.LKey() == wrs[i].SGL[0].LKey })]
			h := iser.Header{Flags: iser.WriteValid, WriteSTag: max(r.RKey(), 1), WriteBase: r.Addr()}
			h.Append(b[:0])
		}
		return wrs
	}
	return l
}
