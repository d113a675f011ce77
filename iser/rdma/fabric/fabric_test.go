package fabric_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

var listenAddr = netip.MustParseAddrPort("10.0.0.1:0")

// A side is one end of a connection in a test.
type side struct {
	t   testing.TB
	ep  rdma.Endpoint
	qp  rdma.QueuePair
	scq rdma.CompletionQueue
	rcq rdma.CompletionQueue
	buf []byte
	mr  rdma.MemoryRegion
}

const (
	sideDepth  = 16
	sideMemory = 64 << 10
	allAccess  = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.WindowBind
)

func newSide(t testing.TB, ep rdma.Endpoint) *side {
	s := &side{t: t, ep: ep, buf: make([]byte, sideMemory)}
	var err error
	s.scq, err = ep.Device().NewCQ(2 * sideDepth)
	require.NoError(t, err)
	s.rcq, err = ep.Device().NewCQ(2 * sideDepth)
	require.NoError(t, err)
	s.mr, err = ep.Device().Register(s.buf, allAccess)
	require.NoError(t, err)
	s.qp, err = ep.CreateQP(rdma.QPConfig{
		SendCQ: s.scq, RecvCQ: s.rcq, SendDepth: sideDepth, RecvDepth: sideDepth, MaxSendSGE: 4, MaxRecvSGE: 4,
	})
	require.NoError(t, err)
	return s
}

func (s *side) close() {
	require.NoError(s.t, s.ep.Close())
	require.NoError(s.t, s.scq.Close())
	require.NoError(s.t, s.rcq.Close())
	require.NoError(s.t, s.mr.Deregister())
}

var depth4 = rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}

// connect joins two sides through f and closes them when the test ends.
func connect(t testing.TB, f *fabric.Fabric, active, passive rdma.ConnParam) (a, b *side) {
	l, err := f.Listen(listenAddr)
	require.NoError(t, err)
	defer l.Close()
	ep, err := f.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	a = newSide(t, ep)
	accepted := make(chan *side, 1)
	go func() {
		defer close(accepted)
		p, err := l.Accept(t.Context())
		if err != nil {
			return
		}
		s := newSide(t, p)
		if p.Accept(passive) == nil {
			accepted <- s
		}
	}()
	require.NoError(t, ep.Connect(t.Context(), active))
	b = <-accepted
	require.NotNil(t, b)
	t.Cleanup(func() { a.close(); b.close() })
	return a, b
}

func (s *side) piece(off uint64, n uint32) []rdma.SGE { return []rdma.SGE{rdma.Piece(s.mr, off, n)} }

// recv posts a receive for n bytes at off.
func (s *side) recv(id, off uint64, n uint32) {
	_, err := s.qp.PostRecv([]rdma.RecvWR{{ID: id, SGL: s.piece(off, n)}})
	require.NoError(s.t, err)
}

func (s *side) post(wrs ...rdma.SendWR) {
	n, err := s.qp.PostSend(wrs)
	require.NoError(s.t, err)
	require.Equal(s.t, len(wrs), n)
}

// sends waits for n more completions of the send queue and returns them.
func (s *side) sends(n int) []rdma.Completion { return poll(s.t, s.scq, n) }

// recvs is the same for the receive queue.
func (s *side) recvs(n int) []rdma.Completion { return poll(s.t, s.rcq, n) }

func poll(t testing.TB, cq rdma.CompletionQueue, n int) []rdma.Completion {
	var got []rdma.Completion
	for deadline := time.Now().Add(5 * time.Second); len(got) < n; {
		var cs [4]rdma.Completion
		m, err := cq.Poll(cs[:min(len(cs), n-len(got))])
		require.NoError(t, err)
		got = append(got, cs[:m]...)
		if m == 0 {
			require.True(t, time.Now().Before(deadline), "%d of %d completions", len(got), n)
			require.NoError(t, cq.Wait(deadline))
		}
	}
	return got
}

func TestSendArrives(t *testing.T) {
	a, b := connect(t, fabric.New(fabric.Options{}), depth4, depth4)
	b.recv(7, 0, 100)
	copy(a.buf, "hello")
	a.post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.piece(0, 5)})
	require.Equal(t, rdma.Completion{ID: 7, Recv: true, ByteLen: 5, QPNum: b.qp.Num()}, b.recvs(1)[0])
	require.Equal(t, rdma.Completion{ID: 3, QPNum: a.qp.Num()}, a.sends(1)[0])
	require.Equal(t, "hello", string(b.buf[:5]))
}
