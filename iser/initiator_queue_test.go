package iser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// Commands wait in order for the queue depth, and for memory.
func TestCommandsWaitTheirTurn(t *testing.T) {
	for name, c := range map[string]InitiatorConfig{
		"queue depth": {QueueDepth: 2},
		"memory":      {QueueDepth: 64, PoolBytes: 2 << 20}, // two reads of 512 KiB
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, c)
			b.enable(normalParams())
			p.post(40)
			const n = 400 << 10
			var trs []*iscsi.Transfer
			ins := make([][]byte, 8)
			for i := range ins {
				ins[i] = make([]byte, n)
				trs = append(trs, b.command(uint32(i), ins[i], nil))
			}
			b.ini.Send(testText(), nil) // keeps its place behind them
			b.ini.Send(testNOP(), nil)  // a ping does not
			require.False(t, b.ini.Idle())
			require.NoError(t, b.ini.Flush())
			for i := range ins {
				m, cmd := received(t, p.recv())
				require.EqualValues(t, i, cmd.ITT)
				if i == 1 {
					m, _ := received(t, p.recv())
					require.Equal(t, iscsi.OpNOPOut, iscsi.OpcodeOf(m.BHS))
				}
				p.poll()
				commands := 1
				for _, a := range p.got {
					if _, c := received(t, a); c.Read {
						commands++
					}
				}
				require.LessOrEqual(t, commands, 2, "at a time")
				p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 8000), uint32(i)))
				p.answer(iscsi.SCSIResponse{ITT: cmd.ITT})
				require.Same(t, trs[i], b.until(iscsi.EventPDU).Transfer)
				require.NoError(t, b.ini.Flush())
				require.Same(t, trs[i], b.until(iscsi.EventReleased).Transfer)
				require.NoError(t, b.ini.Flush())
				require.Equal(t, pattern(make([]byte, 8000), uint32(i)), ins[i][:8000])
			}
			m, _ := received(t, p.recv())
			require.Equal(t, iscsi.OpTextRequest, iscsi.OpcodeOf(m.BHS))
			require.Zero(t, b.ini.sink.live)
			require.Len(t, b.ini.sink.free[b.ini.sink.top], 1, "all in one piece again")
		})
	}
}

func testNOP() *[iscsi.BHSSize]byte {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 1, TTT: iscsi.ReservedTag}).Put(&bhs)
	return &bhs
}

func TestCommandsLeaveSlotsForAnswers(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 2})
	b.enable(normalParams())
	p.post(4)
	b.command(1, nil, nil)
	require.NoError(t, b.ini.Flush()) // its completion is not polled for: one Send is outstanding
	var taken []int32
	for b.ini.slots.spare() > b.ini.posted+spareSlots {
		index, ok := b.ini.slots.get(1)
		require.True(t, ok)
		b.ini.slots.all[index].op = rdma.OpSend
		taken = append(taken, index)
	}
	b.command(2, nil, nil)
	require.NoError(t, b.ini.Flush())
	require.Len(t, ofKind(b.tap.take(), rdma.OpSend), 1)
	b.ini.slots.put(taken[0])
	require.NoError(t, b.ini.Flush())
	require.Len(t, ofKind(b.tap.take(), rdma.OpSend), 1)
}

func testText() *[iscsi.BHSSize]byte {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.TextRequest{Final: true, ITT: 2, TTT: iscsi.ReservedTag}).Put(&bhs)
	return &bhs
}

func TestCommandLongerThanThePool(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{PoolBytes: 2 << 20})
	b.enable(normalParams())
	p.post(2)
	regions := b.f.Gauges().Regions
	in := make([]byte, 3<<20)
	tr := b.command(1, in, nil)
	require.NoError(t, b.ini.Flush())
	require.Equal(t, regions+1, b.f.Gauges().Regions)
	m, _ := received(t, p.recv())
	p.put(m.ReadSTag, m.ReadBase+3<<20-8, []byte("the end!"))
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Equal(t, "the end!", string(in[3<<20-8:]))
	require.NoError(t, b.ini.Flush())
	b.until(iscsi.EventReleased)
	require.Equal(t, regions, b.f.Gauges().Regions)
}

// A response can overtake the Send's completion: the acknowledgement was late. Nothing the Send reads may
// be used again before.
func TestResponseBeforeTheSendCompletion(t *testing.T) {
	early := 0
	for seed := uint64(1); seed < 200 && early < 5; seed++ {
		o := strict
		o.Seed = seed
		b, p := newInitiator(t, o, InitiatorConfig{QueueDepth: 1})
		b.enable(normalParams())
		p.post(4)
		out := pattern(make([]byte, 4096), 1)
		tr := b.command(1, nil, out)
		require.NoError(t, b.ini.Flush())
		slot := b.ini.slots.all[b.ini.ops.all[b.ini.firstOp()].slot].mem
		p.recv()
		p.start(responseBytes(iscsi.SCSIResponse{ITT: 1}))
		ev := b.until(iscsi.EventPDU)
		require.Same(t, tr, ev.Transfer)
		if b.ini.sends > 0 {
			early++
			require.NotZero(t, tr.DM, "the transfer is not released")
			before := append([]byte(nil), slot...)
			b.command(2, nil, pattern(make([]byte, 4096), 99)) // the same ITT's slot is not used
			require.NoError(t, b.ini.Flush())
			require.Equal(t, before, slot)
		}
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
		require.NoError(t, b.ini.Close())
		p.close()
	}
	require.NotZero(t, early, "no seed made it happen")
}
