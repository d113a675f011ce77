package rdmatest

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// Patience is how long a test waits for what must come. It is long, because a receiver that is not
// ready costs 0.66 s on real devices, and only a broken provider makes a test wait all of it.
const Patience = 15 * time.Second

// Defaults of Config.
const (
	DefaultDepth  = 32
	DefaultSGE    = 4
	DefaultMemory = 256 << 10
)

// Config says what Connect makes; the zero value is a pair that can do everything.
type Config struct {
	// Active and Passive are the REQ and the REP; nil: RDMA Reads of depth 4 both ways.
	Active, Passive *rdma.ConnParam
	Depth           int // of each queue, work requests
	SGE             int // scatter/gather entries of a work request
	Memory          int // bytes of each end
	// Access to the ends' memory; 0: everything that the device can grant.
	Access rdma.Access
	// OneCQ has one completion queue for both queues of an end.
	OneCQ bool
}

// An End is one side of a connection: an endpoint with its queue pair, completion queues and a piece of
// registered memory. Its methods end the test when something fails.
type End struct {
	T      testing.TB
	EP     rdma.Endpoint
	QP     rdma.QueuePair
	SendCQ rdma.CompletionQueue
	RecvCQ rdma.CompletionQueue
	Memory []byte
	MR     rdma.MemoryRegion
	closed bool
}

// NewEnd gives ep a queue pair, completion queues that cannot overrun, and memory. Close frees it all.
func NewEnd(t testing.TB, ep rdma.Endpoint, c Config) *End {
	depth, sge, size := orDefault(c.Depth, DefaultDepth), orDefault(c.SGE, DefaultSGE), orDefault(c.Memory, DefaultMemory)
	d := ep.Device()
	access := c.Access
	if access == 0 {
		access = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead
		if d.Limits().Windows {
			access |= rdma.WindowBind
		}
	}
	e := &End{T: t, EP: ep, Memory: mapMemory(t, size)}
	var err error
	e.MR, err = d.Register(e.Memory, access)
	require.NoError(t, err)
	const slack = 64 // drivers round queues up, and a test may fill them
	e.SendCQ, err = d.NewCQ(2*depth + slack)
	require.NoError(t, err)
	e.RecvCQ = e.SendCQ
	if !c.OneCQ {
		e.RecvCQ, err = d.NewCQ(depth + slack)
		require.NoError(t, err)
	}
	sge = min(sge, d.Limits().MaxSGE)
	e.QP, err = ep.CreateQP(rdma.QPConfig{
		SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, SendDepth: depth, RecvDepth: depth, MaxSendSGE: sge, MaxRecvSGE: sge,
	})
	require.NoError(t, err)
	return e
}

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Close frees the end in the order that devices ask for; calling it again does nothing.
func (e *End) Close() {
	if e.closed {
		return
	}
	e.closed = true
	require.NoError(e.T, e.EP.Close())
	require.NoError(e.T, e.SendCQ.Close())
	if e.RecvCQ != e.SendCQ {
		require.NoError(e.T, e.RecvCQ.Close())
	}
	require.NoError(e.T, e.MR.Deregister())
	unmapMemory(e.T, e.Memory)
}

// Connect makes two connected ends over p, with a listener at addr (port 0: a free one) that is closed
// again. The ends are closed when the test ends.
func Connect(t testing.TB, p rdma.Provider, addr netip.AddrPort, c Config) (active, passive *End) {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	l, err := p.Listen(addr)
	require.NoError(t, err)
	defer l.Close()
	return ConnectTo(ctx, t, p, l, c)
}

// ConnectTo is Connect through a listener that the test has.
func ConnectTo(ctx context.Context, t testing.TB, p rdma.Provider, l rdma.Listener, c Config) (active, passive *End) {
	ep, err := p.Resolve(ctx, l.Addr())
	require.NoError(t, err)
	active = NewEnd(t, ep, c)
	t.Cleanup(active.Close)
	connected := make(chan error, 1)
	go func() { connected <- ep.Connect(ctx, param(c.Active, ep)) }()
	pep, err := l.Accept(ctx)
	require.NoError(t, err)
	passive = NewEnd(t, pep, c)
	t.Cleanup(passive.Close)
	require.NoError(t, pep.Accept(param(c.Passive, pep)))
	require.NoError(t, <-connected)
	return active, passive
}

func param(p *rdma.ConnParam, ep rdma.Endpoint) rdma.ConnParam {
	if p != nil {
		return *p
	}
	depth := min(4, ep.Device().Limits().MaxReadDepth)
	return rdma.ConnParam{ResponderResources: depth, InitiatorDepth: depth}
}

// Piece is a list of one entry: bytes [off, off+n) of the end's memory.
func (e *End) Piece(off uint64, n uint32) []rdma.SGE { return []rdma.SGE{rdma.Piece(e.MR, off, n)} }

// Pieces cuts bytes [off, off+n) of the end's memory into up to k pieces of different lengths.
func (e *End) Pieces(off uint64, n uint32, k int) []rdma.SGE {
	var sgl []rdma.SGE
	for i := k; i > 1 && n > 1; i-- {
		m := n/uint32(i) | 1
		if m >= n {
			break
		}
		sgl = append(sgl, rdma.Piece(e.MR, off, m))
		off, n = off+uint64(m), n-m
	}
	return append(sgl, rdma.Piece(e.MR, off, n))
}

// Post posts work requests; all must be taken.
func (e *End) Post(wrs ...rdma.SendWR) {
	n, err := e.QP.PostSend(wrs)
	require.NoError(e.T, err)
	require.Equal(e.T, len(wrs), n)
}

// Recv posts a receive of n bytes at off.
func (e *End) Recv(id, off uint64, n uint32) {
	m, err := e.QP.PostRecv([]rdma.RecvWR{{ID: id, SGL: e.Piece(off, n)}})
	require.NoError(e.T, err)
	require.Equal(e.T, 1, m)
}

// Sends waits for the next n completions of the send queue, Recvs for those of the receive queue.
func (e *End) Sends(n int) []rdma.Completion { return Collect(e.T, e.SendCQ, n) }

// Recvs waits for the next n completions of the receive queue.
func (e *End) Recvs(n int) []rdma.Completion { return Collect(e.T, e.RecvCQ, n) }

// Collect waits for n completions of cq.
func Collect(t testing.TB, cq rdma.CompletionQueue, n int) []rdma.Completion {
	t.Helper()
	got := make([]rdma.Completion, 0, n)
	for deadline := time.Now().Add(Patience); len(got) < n; {
		m, err := cq.Poll(got[len(got):n])
		require.NoError(t, err)
		got = got[:len(got)+m]
		if m == 0 {
			require.True(t, time.Now().Before(deadline), "%d of %d completions came: %v", len(got), n, got)
			require.NoError(t, cq.Wait(deadline))
		}
	}
	return got
}

// Quiet checks that no completion comes to cq for a while.
func Quiet(t testing.TB, cq rdma.CompletionQueue, d time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		require.NoError(t, cq.Wait(deadline))
		var cs [1]rdma.Completion
		n, err := cq.Poll(cs[:])
		require.NoError(t, err)
		require.Zero(t, n, "a completion nobody expects: %v", cs[0])
	}
}

// Ended checks the identifiers and statuses of completions of queue pair e.QP.
func (e *End) Ended(cs []rdma.Completion, status rdma.Status, ids ...uint64) {
	e.T.Helper()
	require.Len(e.T, cs, len(ids))
	for i, c := range cs {
		assert.Equal(e.T, ids[i], c.ID, "completion %d: %v", i, c)
		assert.Equal(e.T, status, c.Status, "completion %d: %v", i, c)
		assert.Equal(e.T, e.QP.Num(), c.QPNum, "completion %d: %v", i, c)
	}
	if e.T.Failed() {
		e.T.FailNow()
	}
}

// Flushed checks that the queue pair is in the error state: n receives that were posted are flushed, in
// the order of their identifiers from first on, and a Send posted now is flushed too.
func (e *End) Flushed(first uint64, n int) {
	e.T.Helper()
	for i, c := range e.Recvs(n) {
		require.Equal(e.T, rdma.WRFlushErr, c.Status, "receive %d", i)
		require.Equal(e.T, first+uint64(i), c.ID, "receive %d", i)
	}
	const late = 0xdead
	e.Post(rdma.SendWR{ID: late, Op: rdma.OpSend})
	e.Ended(e.Sends(1), rdma.WRFlushErr, late)
}

// Fill writes a pattern that tells its seed and the place of each word; short tails are cut words.
func Fill(b []byte, seed uint64) {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(seed, i))
	}
	copy(b[i:], binary.LittleEndian.AppendUint64(nil, word(seed, i)))
}

// Check ends the test unless b is what Fill made.
func Check(t testing.TB, b []byte, seed uint64) {
	t.Helper()
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if got, want := binary.LittleEndian.Uint64(b[i:]), word(seed, i); got != want {
			require.Failf(t, "pattern", "%d: word %#x at byte %d of %d, want %#x", seed, got, i, len(b), want)
		}
	}
	tail := binary.LittleEndian.AppendUint64(nil, word(seed, i))
	require.Equal(t, tail[:len(b)-i], b[i:], "pattern %d: last bytes of %d", seed, len(b))
}

// word is never all zeros, which is what fresh memory holds.
func word(seed uint64, i int) uint64 { return (seed+1)*0x9e3779b97f4a7c15 + uint64(i)<<32 | 1 }
