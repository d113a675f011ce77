package iser

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// A spyQP records the order of posts.
type spyQP struct {
	rdma.QueuePair
	log []string
}

func (q *spyQP) PostSend(wrs []rdma.SendWR) (int, error) {
	q.log = append(q.log, "send")
	for _, w := range wrs {
		if w.Op == rdma.OpSend || w.Op == rdma.OpSendInv {
			if w.Flags != rdma.Signaled|rdma.Solicited {
				q.log = append(q.log, "a Send that is not signalled and solicited")
			}
		} else if w.Op == rdma.OpWrite && w.Flags != 0 {
			q.log = append(q.log, "a signalled Write")
		}
	}
	return q.QueuePair.PostSend(wrs)
}

func (q *spyQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.log = append(q.log, "receive")
	return q.QueuePair.PostRecv(wrs)
}

func TestARoundIsOnePostAfterTheReceives(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	m := p.lend(4096, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	p.post(4)
	for i := range uint32(3) {
		p.send(readCommand(i, m, 4096).bytes())
	}
	p.send(writeCommand(3, m, 4096, nil).bytes())
	spy := &spyQP{QueuePair: b.tgt.qp}
	b.tgt.qp = spy
	buf := make([]byte, 4096)
	for _, ev := range b.wait(time.Second) {
		tr := &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 4096, Remote: ev.Remote}
		if tr.ITT == 3 {
			b.tgt.GetData(tr, [][]byte{make([]byte, 4096)}, 0)
			continue
		}
		b.tgt.PutData(tr, [][]byte{buf}, 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
	}
	require.NoError(t, b.tgt.Flush())
	require.Equal(t, []string{"receive", "send"}, spy.log)
	b.until(iscsi.EventGot)
}

// A window that is always full, with an initiator that has not one receive or send to spare.
func TestReceiveIsPostedBeforeTheResponse(t *testing.T) {
	const window = 4
	b, p := newTarget(t, strict, TargetConfig{Window: window}, refused)
	b.enable(normalParams())
	m := p.lend(512, rdma.LocalWrite|rdma.RemoteWrite)
	data := make([]byte, 512)
	require.NoError(t, b.lis.Register(data))
	var trs []*iscsi.Transfer
	for i := range uint32(window + reserve + 1) { // every receive is taken
		p.post(1)
		p.send(readCommand(i, m, 512).bytes())
	}
	for len(trs) < window+reserve+1 {
		for _, ev := range b.wait(time.Second) {
			trs = append(trs, &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 512, Remote: ev.Remote})
		}
	}
	for i := range 2000 {
		tr := trs[i%len(trs)]
		b.tgt.PutData(tr, [][]byte{data}, 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
		require.NoError(t, b.tgt.Flush())
		p.recv()
		p.post(1)
		// The ITT is used again at once, before the target has seen its Send complete.
		w := readCommand(tr.ITT, m, 512).bytes()
		p.send(w)
		*tr = iscsi.Transfer{ITT: tr.ITT, EDTL: 512}
		for got := 0; got < 2; {
			for _, ev := range b.wait(time.Second) {
				got++
				if ev.Kind == iscsi.EventPDU {
					tr.Remote = ev.Remote
				}
			}
		}
	}
}

func TestShortSendQueueKeepsTheOrder(t *testing.T) {
	for _, depth := range []int{4, 5, 8, 33} {
		for _, registered := range []bool{true, false} {
			t.Run(fmt.Sprint(depth, registered), func(t *testing.T) {
				b, p := newTarget(t, strict, TargetConfig{Window: 16, sendDepth: depth}, refused)
				b.enable(normalParams())
				const n = 10 * 65536
				store := pattern(make([]byte, 2*n), 9)
				if registered {
					require.NoError(t, b.lis.Register(store))
				}
				// Pieces apart, each a message of its own: 10 Writes a task.
				bufs := make([][]byte, 0, 200)
				for i := range 10 * 16 {
					bufs = append(bufs, store[i*8192:][:4096])
				}
				m := p.lend(n, rdma.LocalWrite|rdma.RemoteWrite)
				var trs []*iscsi.Transfer
				for i := range uint32(16) {
					p.post(1)
					trs = append(trs, b.command(p, readCommand(i, m, n)))
					require.NoError(t, b.tgt.Flush())
				}
				b.tap.take()
				for _, tr := range trs {
					b.tgt.PutData(tr, bufs, 0)
					b.tgt.Respond(tr, response(tr.ITT), nil)
				}
				require.NoError(t, b.tgt.Flush())
				assert.False(t, b.tgt.Idle())
				for i := range trs {
					ev := b.until(iscsi.EventReleased)
					require.Same(t, trs[i], ev.Transfer)
					require.NoError(t, b.tgt.Flush())
				}
				assert.True(t, b.tgt.Idle())
				next := uint32(0)
				var written uint64
				for _, o := range b.tap.take() {
					if o.Op == rdma.OpWrite {
						require.Equal(t, m.addr+written, o.Addr)
						written += o.Length
						continue
					}
					require.EqualValues(t, n, written, "a response before its data")
					written = 0
					a := p.recv()
					require.Equal(t, next, iscsi.ITTOf((*[48]byte)(a.b[HeaderSize:])))
					next++
				}
				require.EqualValues(t, 16, next)
				require.Equal(t, store[159*8192:][:4096], m.mem[159*4096:][:4096])
			})
		}
	}
}

func TestQueueFullIsTriedAgain(t *testing.T) {
	refuse := 0
	o := strict
	count := 0
	o.Fault = func(qp uint32, wr *rdma.SendWR) (f fabric.Fault) {
		if wr.Op == rdma.OpWrite || wr.Op == rdma.OpRead || wr.Op == rdma.OpSend && wr.ID != sendID {
			if count++; refuse > 0 && count%2 == 0 {
				refuse--
				f.Post = rdma.ErrQueueFull
			}
		}
		return f
	}
	b, p := newTarget(t, o, TargetConfig{}, refused)
	b.enable(normalParams())
	m := p.lend(65536, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	pattern(m.mem, 3)
	p.post(40)
	var trs []*iscsi.Transfer
	for i := range uint32(20) {
		trs = append(trs, b.command(p, readCommand(i, m, 4096)))
		require.NoError(t, b.tgt.Flush())
	}
	data := pattern(make([]byte, 4096), 4)
	require.NoError(t, b.lis.Register(data))
	refuse = 25
	for _, tr := range trs {
		b.tgt.PutData(tr, split(data, 2048), 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
	}
	wr := b.command(p, writeCommand(99, m, 65536, nil))
	buf := make([]byte, 65536)
	b.tgt.GetData(wr, [][]byte{buf}, 0)
	require.NoError(t, b.tgt.Flush())
	released, got := 0, false
	end := time.Now().Add(patience)
	for released < len(trs) || !got {
		require.True(t, time.Now().Before(end))
		for _, ev := range b.wait(time.Second) {
			if ev.Kind == iscsi.EventGot {
				got = true
				continue
			}
			require.Same(t, trs[released], ev.Transfer)
			released++
		}
		require.NoError(t, b.err)
	}
	require.Zero(t, refuse)
	for i := range uint32(20) {
		require.Equal(t, i, iscsi.ITTOf((*[48]byte)(p.recv().b[HeaderSize:])))
	}
	require.Equal(t, m.mem, buf)
}

func TestChainsArePostedWholeOrNotAtAll(t *testing.T) {
	for _, registered := range []bool{true, false} {
		b, p := newTarget(t, strict, TargetConfig{Window: 4, sendDepth: 8}, refused)
		b.enable(normalParams())
		const n = 3 << 20 // in the registered case 3 Writes
		store := make([]byte, n)
		size, want := uint32(n), []int{4, 4, 4}
		if registered {
			require.NoError(t, b.lis.Register(store))
		} else {
			size, want = 4*bounceSize, []int{5, 5, 5} // 4 chunks and the Send
		}
		m := p.lend(n, rdma.LocalWrite|rdma.RemoteWrite)
		p.post(3)
		var trs []*iscsi.Transfer
		for i := range uint32(3) {
			trs = append(trs, b.command(p, readCommand(i, m, size)))
		}
		b.tap.take()
		for _, tr := range trs {
			b.tgt.PutData(tr, [][]byte{store[:size]}, 0)
			b.tgt.Respond(tr, response(tr.ITT), nil)
		}
		require.NoError(t, b.tgt.Flush())
		// What fits of 8 is one chain of 5, or two of 4.
		ops := b.tap.take()
		require.Len(t, ops, 8/want[0]*want[0])
		require.Equal(t, rdma.OpSend, ops[len(ops)-1].Op)
		require.Equal(t, 8-len(ops), b.tgt.credits)
		for range trs {
			b.until(iscsi.EventReleased)
			require.NoError(t, b.tgt.Flush())
		}
		require.Equal(t, 8, b.tgt.credits)
		if !registered {
			require.Equal(t, bounceWrites, b.tgt.bounce.writes)
		}
	}
}

// An initiator that asks and asks but takes no answer is held up before our queue is.
func TestPeerThatTakesNoAnswers(t *testing.T) {
	o := strict
	o.RNRFatal = false
	b, p := newTarget(t, o, TargetConfig{Window: 4}, refused)
	b.enable(normalParams())
	asked := 0
	for quiet := 0; quiet < 3; {
		sent := p.sent
		p.start(testMessage(0, 0))
		for range 10 {
			p.poll()
		}
		evs := b.wait(time.Millisecond)
		require.NoError(t, b.err)
		for range evs {
			b.tgt.Send(response(1), nil)
			asked++
		}
		require.NoError(t, b.tgt.Flush())
		if p.sent == sent && len(evs) == 0 {
			quiet++
		}
		require.Less(t, asked, 1000)
	}
	p.post(asked) // it wakes up: all answers come, and it goes on
	for range asked {
		p.recv()
		for range b.wait(time.Millisecond) {
			b.tgt.Send(response(1), nil)
			p.post(1)
		}
		require.NoError(t, b.tgt.Flush())
	}
}
