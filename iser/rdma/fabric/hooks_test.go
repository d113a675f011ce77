package fabric_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

// record is a Tap that keeps what it is shown.
func record(ops *[]fabric.Operation) func(*fabric.Operation) {
	return func(o *fabric.Operation) {
		c := *o
		c.Data = nil
		if o.Status == rdma.Success && o.Op <= rdma.OpRead {
			c.Data = [][]byte{bytes.Join(o.Data, nil)}
		}
		*ops = append(*ops, c)
	}
}

func TestTapSeesEveryOperation(t *testing.T) {
	var ops []fabric.Operation
	a, b := connect(t, fabric.New(fabric.Options{Tap: record(&ops)}), rdmatest.Config{})
	copy(a.Memory, "from a")
	copy(b.Memory[4096:], "from b")
	w, err := b.EP.Device().NewWindow()
	require.NoError(t, err)
	defer w.Close()
	b.Post(rdma.SendWR{Op: rdma.OpBindWindow, Window: w, Region: b.MR, SGL: b.Piece(64, 64), Access: rdma.RemoteRead})
	key := w.RKey()
	_, err = b.QP.PostRecv([]rdma.RecvWR{{SGL: []rdma.SGE{rdma.Piece(b.MR, 0, 2), rdma.Piece(b.MR, 100, 20)}}})
	require.NoError(t, err)
	b.Recv(1, 0, 8)
	a.Post(
		send(0, a.Piece(0, 6)),
		write(0, b, 1024, a.Piece(0, 4)),
		read(0, b, 4096, a.Piece(64, 6)),
		rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: key},
		write(0, b, 1<<40, a.Piece(0, 4)),
	)
	qa, qb := a.QP.Num(), b.QP.Num()
	mr := b.MR
	assert.Equal(t, []fabric.Operation{
		{Op: rdma.OpBindWindow, QP: qb, Key: key, Addr: mr.Addr() + 64},
		{Op: rdma.OpSend, QP: qa, Peer: qb, Length: 6, Data: [][]byte{[]byte("from a")}},
		{Op: rdma.OpWrite, QP: qa, Peer: qb, Key: mr.RKey(), Addr: mr.Addr() + 1024, Length: 4, Data: [][]byte{[]byte("from")}},
		{Op: rdma.OpRead, QP: qa, Peer: qb, Key: mr.RKey(), Addr: mr.Addr() + 4096, Length: 6, Data: [][]byte{[]byte("from b")}},
		{Op: rdma.OpSendInv, QP: qa, Peer: qb, Key: key, Data: [][]byte{nil}},
		{Op: rdma.OpWrite, QP: qa, Peer: qb, Status: rdma.RemAccessErr, Key: mr.RKey(), Addr: mr.Addr() + 1<<40, Length: 4},
	}, ops)
}

// TestTapCanProveWhatWasRead is how a test asserts that nothing outside [va, va+n) was touched.
func TestTapCanProveWhatWasRead(t *testing.T) {
	for _, seed := range []uint64{0, 5} {
		var ops []fabric.Operation
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed, Tap: record(&ops)}), rdmatest.Config{})
		va, n := b.MR.Addr()+1000, uint64(5000)
		a.Post(read(1, b, 1000, a.Piece(0, 4096)), read(2, b, 1000+4096, a.Piece(4096, 904)))
		a.Ended(a.Sends(2), rdma.Success, 1, 2)
		var got uint64
		for _, o := range ops {
			require.GreaterOrEqual(t, o.Addr, va)
			require.LessOrEqual(t, o.Addr+o.Length, va+n)
			got += o.Length
		}
		require.Equal(t, n, got)
	}
}

func TestFaultAtThePost(t *testing.T) {
	full := 2 // the queue is full at the second and third
	f := fabric.New(fabric.Options{Fault: func(_ uint32, wr *rdma.SendWR) (flt fabric.Fault) {
		if wr.ID >= 2 && full > 0 {
			full--
			flt.Post = rdma.ErrQueueFull
		}
		return flt
	}})
	a, b := connect(t, f, rdmatest.Config{})
	b.Recv(1, 0, 8)
	b.Recv(2, 0, 8)
	wrs := []rdma.SendWR{send(1, nil), send(2, nil)}
	n, err := a.QP.PostSend(wrs)
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, 1, n)
	n, err = a.QP.PostSend(wrs[1:])
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Zero(t, n)
	a.Post(wrs[1:]...)
	b.Ended(b.Recvs(2), rdma.Success, 1, 2)
}

// TestFaultOfADevice: the device takes an opcode and fails it; a responder fails what it is asked.
func TestFaultOfADevice(t *testing.T) {
	for status, both := range map[rdma.Status]bool{
		rdma.LocQPOpErr: false, rdma.RetryExcErr: false, rdma.RemOpErr: true, rdma.RemAccessErr: true, rdma.RemInvReqErr: true,
	} {
		t.Run(status.String(), func(t *testing.T) {
			var ops []fabric.Operation
			f := fabric.New(fabric.Options{Tap: record(&ops), Fault: func(_ uint32, wr *rdma.SendWR) (flt fabric.Fault) {
				if wr.Op == rdma.OpSendInv {
					flt.Status = status
				}
				return flt
			}})
			a, b := connect(t, f, rdmatest.Config{})
			b.Recv(1, 0, 8)
			b.Recv(2, 0, 8)
			a.Post(send(1, nil), rdma.SendWR{ID: 5, Op: rdma.OpSendInv, InvalidateKey: 77})
			a.Ended(a.Sends(1), rdma.Success, 1)
			b.Ended(b.Recvs(1), rdma.Success, 1)
			require.Equal(t, fabric.Operation{
				Op: rdma.OpSendInv, QP: a.QP.Num(), Peer: b.QP.Num(), Key: 77, Status: status,
			}, ops[1])
			if both {
				b.Ended(b.Recvs(1), rdma.WRFlushErr, 2)
			}
			fails(t, a, b, 5, status, both)
		})
	}
}

func TestSegmentsOfAllCuts(t *testing.T) {
	f := fabric.New(fabric.Options{})
	a, b := connect(t, f, rdmatest.Config{SGE: 8})
	for n := uint32(1); n < 40; n++ {
		for out := 1; out <= 8; out++ {
			in := 1 + (out*5+int(n))%7
			rdmatest.Fill(a.Memory[:n], uint64(n))
			clear(b.Memory[:64])
			_, err := b.QP.PostRecv([]rdma.RecvWR{{SGL: slices.Concat(b.Pieces(0, n, in), b.Piece(uint64(n), 8))}})
			require.NoError(t, err)
			a.Post(send(0, a.Pieces(0, n, out)))
			a.Sends(1)
			b.Ended(b.Recvs(1), rdma.Success, 0)
			rdmatest.Check(t, b.Memory[:n], uint64(n))
			require.Equal(t, make([]byte, 24), b.Memory[n:n+24])
		}
	}
}
