package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A pipe joins two queue pairs through memory, without a clock or weather, and allocates nothing.
type pipe struct {
	qs    [2]*QP
	buf   []byte
	used  int
	sizes []int
	ended int
	bad   int
	now   time.Time
	mem   [2]rdma.MemoryRegion
	bytes [2][]byte
}

func (p *pipe) Packet(_ *QP, op wire.Opcode, n int) wire.Packet {
	if len(p.sizes) == cap(p.sizes) || len(p.buf)-p.used < op.HeaderSize()+n+3+wire.ICRCSize {
		return nil
	}
	k := wire.New(p.buf[p.used:], op, n)
	p.used += len(k)
	p.sizes = append(p.sizes, len(k))
	return k
}

func (p *pipe) Complete(_ *QP, c rdma.Completion) {
	p.ended++
	if c.Status != rdma.Success {
		p.bad++
	}
}

func newPipe(tb testing.TB, mtu int) *pipe {
	p := &pipe{buf: make([]byte, 1<<20), sizes: make([]int, 0, 128), now: time.Unix(1, 0)}
	a := config()
	a.MTU, a.Window, a.ReadWindow = mtu, 128, 128<<10
	b := a
	b.QPN, b.PeerQPN, b.SendPSN, b.RecvPSN = a.PeerQPN, a.QPN, a.RecvPSN, a.SendPSN
	for i, c := range []Config{a, b} {
		c.Memory = NewMemory(uint64(i))
		p.qs[i] = New(c)
		p.bytes[i] = make([]byte, 1<<18)
		var err error
		p.mem[i], err = c.Memory.Register(p.bytes[i], rights)
		require.NoError(tb, err)
	}
	return p
}

// turn lets one side transmit and the other receive that, and reports how many packets it was.
func (p *pipe) turn(from int) int {
	p.used, p.sizes = 0, p.sizes[:0]
	p.now = p.now.Add(10 * time.Microsecond)
	p.qs[from].Transmit(p.now, p)
	b := p.buf
	n := len(p.sizes)
	for _, size := range p.sizes {
		k, err := wire.Parse(b[:size:size])
		if err != nil {
			panic(err)
		}
		p.qs[1-from].Receive(p.now, k, p)
		b = b[size:]
	}
	return n
}

// settle goes on until nothing is left to be sent, and returns the number of packets.
func (p *pipe) settle() (n int) {
	for {
		k := p.turn(0) + p.turn(1)
		if k == 0 {
			return n
		}
		n += k
	}
}

// jobs are chains of work requests that a warm data path carries, the last signalled.
func (p *pipe) jobs() map[string]func() ([]rdma.SendWR, int) {
	const size = 64 << 10
	local, remote := p.mem[0], p.mem[1]
	one := func(wr rdma.SendWR, recvs int) func() ([]rdma.SendWR, int) {
		wr.Flags = rdma.Signaled
		wr.SGL = []rdma.SGE{rdma.Piece(local, 0, size)}
		wr.RemoteAddr, wr.RKey = remote.Addr(), remote.RKey()
		chain := []rdma.SendWR{wr}
		return func() ([]rdma.SendWR, int) { return chain, recvs }
	}
	return map[string]func() ([]rdma.SendWR, int){
		"Write": one(rdma.SendWR{Op: rdma.OpWrite}, 0),
		"Read":  one(rdma.SendWR{Op: rdma.OpRead}, 0),
		"Send":  one(rdma.SendWR{Op: rdma.OpSend}, 1),
	}
}

// carry posts a chain and sees it through.
func (p *pipe) carry(chain []rdma.SendWR, recv []rdma.RecvWR) int {
	if _, err := p.qs[1].PostRecv(recv, p); err != nil {
		panic(err)
	}
	if _, err := p.qs[0].PostSend(chain, p); err != nil {
		panic(err)
	}
	return p.settle()
}

func TestWarmDataPathDoesNotAllocate(t *testing.T) {
	for name := range newPipe(t, 1024).jobs() {
		p := newPipe(t, 1024)
		chain, recvs := p.jobs()[name]()
		recv := []rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{rdma.Piece(p.mem[1], 1<<17, 64<<10)}}}[:recvs]
		require.Zero(t, testing.AllocsPerRun(50, func() { p.carry(chain, recv) }), name)
		require.Zero(t, p.bad)
		require.Equal(t, 51*(1+recvs), p.ended, name)
	}
}

func TestWindowsDoNotAllocateWhenWarm(t *testing.T) {
	p := newPipe(t, 1024)
	w, err := p.qs[0].cfg.Memory.NewWindow()
	require.NoError(t, err)
	chain := []rdma.SendWR{
		{Op: rdma.OpBindWindow, Window: w, Region: p.mem[0], Access: rdma.RemoteRead, SGL: []rdma.SGE{rdma.Piece(p.mem[0], 0, 4096)}},
		{Op: rdma.OpLocalInv, Flags: rdma.Signaled},
	}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		k := w.RKey()
		chain[1].InvalidateKey = k&^0xff | uint32(uint8(k)+1)
		p.carry(chain, nil)
	}))
	require.Zero(t, p.bad)
	require.Equal(t, 51, p.ended)
}

func benchmark(b *testing.B, name string, mtu int) {
	p := newPipe(b, mtu)
	chain, recvs := p.jobs()[name]()
	recv := []rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{rdma.Piece(p.mem[1], 1<<17, 64<<10)}}}[:recvs]
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	packets := 0
	for b.Loop() {
		packets += p.carry(chain, recv)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
}

// Both ends and both copies are in the time of a packet.
func BenchmarkWrite64K1024(b *testing.B) { benchmark(b, "Write", 1024) }
func BenchmarkWrite64K4096(b *testing.B) { benchmark(b, "Write", 4096) }
func BenchmarkWrite64K256(b *testing.B)  { benchmark(b, "Write", 256) }
func BenchmarkRead64K1024(b *testing.B)  { benchmark(b, "Read", 1024) }
func BenchmarkSend64K1024(b *testing.B)  { benchmark(b, "Send", 1024) }
