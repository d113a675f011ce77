package tcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/require"
)

// chunks cuts b in pieces of n bytes, or of growing size if n is 0.
func chunks(b []byte, n uint8) (c [][]byte) {
	for step := 1; len(b) > 0; step++ {
		k := min(len(b), int(n))
		if n == 0 {
			k = min(len(b), step*step)
		}
		c = append(c, b[:k])
		b = b[k:]
	}
	return c
}

// fuzzParams are the keys that a byte of options stands for, and the peer that speaks so.
func fuzzParams(options uint8) (iscsi.Params, *peer) {
	p := params(func(p *iscsi.Params) {
		p.HeaderDigest, p.DataDigest = options&1 != 0, options&2 != 0
		p.MaxSendData, p.MaxRecvData, p.MaxBurstLength, p.FirstBurstLength = 1024, 4096, 3000, 2000
		p.MaxOutstandingR2T = 2
	})
	return p, &peer{hd: p.HeaderDigest, dd: p.DataDigest}
}

// FuzzStream feeds either end with any bytes in any chunks: it does not panic, does not hang, keeps its memory
// bounded, touches no memory outside the tasks' buffers and gives back every transfer exactly once.
//
// Run it with -fuzzminimizetime=5x: which of our goroutines comes first is chance, and the fuzzer takes that
// for coverage to be minimized.
func FuzzStream(f *testing.F) {
	for options := range uint8(4) {
		_, raw := fuzzParams(options)
		b, _ := messages(raw)
		f.Add(false, options, uint8(7), b)
		b = nil
		for i := range uint32(4) {
			b = append(b, raw.wire(command(opWrite, i, 0, 4000, 4000), nil, make([]byte, 10))...)
			b = append(b, raw.wire(dataOut(i, 1<<16+i*2, 0, 0, true), nil, make([]byte, 3000))...)
			b = append(b, raw.wire(dataOut(i, 1<<16+i*2+1, 0, 3000, true), nil, make([]byte, 1000))...)
			b = append(b, raw.wire(command(opRead, 100+i, 0, 4000, 4000), nil, nil)...)
			b = append(b, raw.wire(&iscsi.TMFRequest{ITT: 7, RefITT: i}, nil, nil)...)
		}
		f.Add(false, options, uint8(0), b)
		b = nil
		for i := range uint32(3) {
			p := dataIn(i+1, 0, 0, true)
			p.HasStatus = true
			b = append(b, raw.wire(dataIn(i+1, 0, 0, false), nil, make([]byte, 1000))...)
			p.DataSN, p.Offset = 1, 1000
			b = append(b, raw.wire(p, nil, make([]byte, 3000))...)
			b = append(b, raw.wire(&iscsi.R2T{ITT: i + 4, TTT: i, Offset: 2000, Length: 1500}, nil, nil)...)
			b = append(b, raw.wire(&iscsi.R2T{ITT: i + 4, TTT: i, R2TSN: 1, Offset: 3500, Length: 500}, nil, nil)...)
			b = append(b, raw.wire(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 1}, nil, []byte("ping"))...)
			b = append(b, raw.wire(&iscsi.SCSIResponse{ITT: i + 4, ExpDataSN: 2}, nil, nil)...)
		}
		f.Add(true, options, uint8(0), b)
		f.Add(true, options, uint8(49), b)
	}
	f.Fuzz(func(t *testing.T, initiator bool, options, size uint8, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		p, _ := fuzzParams(options)
		if initiator {
			fuzzInitiator(t, p, newTape(chunks(b, size)...))
		} else {
			fuzzTarget(t, p, newTape(chunks(b, size)...))
		}
	})
}

// A hostile disk serves what it is told to, within bounds, and aborts what it is told to.
type hostileDisk struct {
	t     *testing.T
	dm    iscsi.TargetDatamover
	seq   iscsi.Sequence
	tasks map[*iscsi.Transfer][][]byte // guarded buffers of the tasks in flight
	ended map[*iscsi.Transfer]bool     // Respond or Abort has been called
}

const guard = 0xa5

// guarded makes n bytes with a guard behind them.
func guarded(n int) []byte {
	b := bytes.Repeat([]byte{guard}, n+16)
	return b[:n]
}

func checkGuard(t *testing.T, b []byte) {
	for _, g := range b[len(b):cap(b)][:16] {
		require.EqualValues(t, guard, g)
	}
}

func (h *hostileDisk) pdu(ev *iscsi.Event) {
	var bhs [iscsi.BHSSize]byte
	switch iscsi.OpcodeOf(ev.BHS) {
	case iscsi.OpSCSICommand:
		if len(h.tasks) == 128 {
			return
		}
		var c iscsi.SCSICommand
		_ = c.Parse(ev.BHS)
		n := int(min(c.EDTL, 16384))
		tr := &iscsi.Transfer{ITT: c.ITT, LUN: c.LUN, EDTL: uint32(n)}
		h.tasks[tr] = [][]byte{guarded(n / 3), guarded(n - n/3)}
		if c.Write {
			h.dm.GetData(tr, h.tasks[tr], 0)
			return
		}
		h.dm.PutData(tr, h.tasks[tr], 0)
		h.respond(tr)
	case iscsi.OpTMFRequest:
		for tr := range h.tasks {
			if !h.ended[tr] {
				h.ended[tr] = true
				h.dm.Abort(tr)
			}
		}
	default:
		bhs = *ev.BHS
		bhs[4] = 0
		h.dm.Send(&bhs, ev.Data)
	}
}

func (h *hostileDisk) respond(tr *iscsi.Transfer) {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.SCSIResponse{ITT: tr.ITT}).Put(&bhs)
	h.ended[tr] = true
	h.dm.Respond(tr, &bhs, nil)
}

func (h *hostileDisk) event(ev *iscsi.Event) {
	switch ev.Kind {
	case iscsi.EventPDU:
		h.pdu(ev)
	case iscsi.EventGot:
		require.False(h.t, h.ended[ev.Transfer])
		h.respond(ev.Transfer)
	case iscsi.EventReleased:
		require.Contains(h.t, h.tasks, ev.Transfer, "released once")
		require.True(h.t, h.ended[ev.Transfer])
		for _, b := range h.tasks[ev.Transfer] {
			checkGuard(h.t, b)
		}
		delete(h.tasks, ev.Transfer)
		delete(h.ended, ev.Transfer)
	}
}

func fuzzTarget(t *testing.T, p iscsi.Params, nc *tape) {
	h := &hostileDisk{t: t, dm: NewTarget(nc), tasks: map[*iscsi.Transfer][][]byte{}, ended: map[*iscsi.Transfer]bool{}}
	require.NoError(t, h.dm.Enable(&p, &h.seq))
	defer h.dm.Close()
	size := len(h.dm.(*target).rx.buf)
	evs := make([]iscsi.Event, 4)
	for dead := false; ; {
		n, err := h.dm.Wait(evs, time0)
		for i := range evs[:n] {
			h.event(&evs[i])
		}
		if err != nil && dead {
			break
		}
		if err != nil {
			dead = true
			for tr := range h.tasks {
				if !h.ended[tr] {
					h.ended[tr] = true
					h.dm.Abort(tr)
				}
			}
		}
		_ = h.dm.Flush()
		c := &h.dm.(*target).conn
		require.Equal(t, size, len(c.rx.buf))
		require.LessOrEqual(t, cap(c.tx.fifo), 4*maxBacklog)
		require.LessOrEqual(t, len(h.dm.(*target).r2ts.slots), 2*2*128)
	}
	require.Empty(t, h.tasks, "all released")
}

func fuzzInitiator(t *testing.T, p iscsi.Params, nc *tape) {
	c := newClient(nc, p)
	defer c.dm.Close()
	c.evs = c.evs[:4]
	var reqs [6]request
	var bufs [6][]byte
	for i := range reqs {
		bufs[i] = guarded(4000)
		b := [][]byte{bufs[i][:1500], bufs[i][1500:]}
		if i < 3 {
			c.submit(&reqs[i], 0, b, nil)
		} else {
			c.submit(&reqs[i], 0, nil, b)
		}
	}
	released := 0
	var bhs [iscsi.BHSSize]byte
	detached := guarded(4000)
	for {
		_ = c.dm.Flush()
		n, err := c.dm.Wait(c.evs, time.Time{})
		if n == 0 && err != nil {
			break
		}
		for i := range c.evs[:n] {
			ev := &c.evs[i]
			switch {
			case ev.Kind == iscsi.EventReleased:
				r := &reqs[ev.Transfer.ITT-1]
				require.False(t, r.released)
				r.released = true
				released++
			case ev.Transfer != nil:
				r := &reqs[ev.Transfer.ITT-1]
				require.False(t, r.responded)
				r.responded = true
				require.LessOrEqual(t, c.dm.Received(ev.Transfer), uint32(4000))
			case iscsi.OpcodeOf(ev.BHS) == iscsi.OpNOPIn:
				bhs = *ev.BHS
				bhs[4] = 0
				c.dm.Send(&bhs, ev.Data)
			case iscsi.OpcodeOf(ev.BHS) == iscsi.OpAsync:
				c.dm.Detach(&reqs[0].Transfer)
				c.dm.Detach(&reqs[3].Transfer)
				detached = append(detached[:0], bufs[0]...)
			case iscsi.OpcodeOf(ev.BHS) == iscsi.OpTMFResponse:
				c.dm.Forget(&reqs[1].Transfer)
				c.dm.Forget(&reqs[4].Transfer)
			}
		}
		d := c.dm.(*initiator)
		require.LessOrEqual(t, cap(d.tx.fifo), 4*maxBacklog)
		require.LessOrEqual(t, len(d.tx.items), 64)
	}
	require.Equal(t, len(reqs), released)
	for _, b := range bufs {
		checkGuard(t, b)
	}
	if reqs[0].In == nil {
		require.Equal(t, detached, bufs[0], "left alone after Detach")
	}
}
