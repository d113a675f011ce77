package roce

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/goiser/goiser/iser/rdma/roce/wiretest"
)

// An injector is a link that also receives what a test puts into it. As a real one it takes back what it has lent. It
// notes what the acknowledgements that leave say is expected next.
type injector struct {
	link.Link
	mu       sync.Mutex
	rs       []link.Received
	lent     []byte
	expected wire.PSN
}

func (l *injector) Send(bs []link.Burst) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range bs {
		for d := b.Data; len(d) > 0; d = d[min(len(d), b.Size):] {
			p, err := wire.Parse(d[:min(len(d), b.Size)])
			if err != nil {
				panic(err) // ours
			}
			if p.Opcode() != wire.Acknowledge {
				continue
			}
			l.expected = p.PSN()
			if s, _ := p.AETH(); s.IsAck() {
				l.expected = p.PSN().Add(1)
			}
		}
	}
	return l.Link.Send(bs)
}

func (l *injector) inject(from netip.AddrPort, size int, b []byte) {
	l.mu.Lock()
	l.rs = append(l.rs, link.Received{From: from, Data: b, Size: size})
	l.mu.Unlock()
	l.Wake()
}

func (l *injector) Recv(rs []link.Received, deadline time.Time) (int, error) {
	l.mu.Lock()
	for i := range l.lent {
		l.lent[i] = 0xdb
	}
	l.lent = nil
	if len(l.rs) > 0 {
		rs[0] = l.rs[0]
		l.lent, l.rs = rs[0].Data, l.rs[1:]
		l.mu.Unlock()
		return 1, nil
	}
	l.mu.Unlock()
	return l.Link.Recv(rs, deadline)
}

// The flags of an instruction say what is made right in its datagram, so that inputs get past the first checks.
const (
	fixQP = 1 << iota
	fixPSN
	fixKey
	fixICRC
	fromPeer
	later // some time passes before it
	cutUp // it comes joined with what follows its first 32 bytes
)

// An instruction is a flag byte, a length of two bytes and a datagram.
const instructionHeader = 3

func instruction(flags byte, datagram []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{flags}, uint16(len(datagram))), datagram...)
}

// FuzzDatagrams feeds what it likes to an endpoint that is connected and has work under way: nothing panics or hangs,
// and no byte is written that the peer was not granted.
func FuzzDatagrams(f *testing.F) {
	all := captured(f)
	for _, d := range all[:67] {
		f.Add(instruction(0, d))
		f.Add(instruction(fixQP|fixPSN|fixKey|fixICRC|fromPeer, d))
	}
	for part := range slices.Chunk(all[67:], 24) { // conversations of the kernel's
		var in, fixed []byte
		for _, d := range part {
			in = append(in, instruction(fixICRC|fromPeer, d)...)
			fixed = append(fixed, instruction(fixQP|fixPSN|fixKey|fixICRC|fromPeer|later, d)...)
		}
		f.Add(in)
		f.Add(fixed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		synctest.Test(t, func(t *testing.T) { feed(t, in) })
	})
}

// captured are the payloads of captured datagrams: the 67 of vectors.txt, then the first of each capture.
func captured(tb testing.TB) (ds [][]byte) {
	f, err := os.Open("wire/testdata/vectors.txt")
	require.NoError(tb, err)
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if w := strings.Split(s.Text(), "\t"); len(w) == 3 && !strings.HasPrefix(w[0], "#") {
			ip, err := hex.DecodeString(w[2])
			require.NoError(tb, err)
			ds = append(ds, ip[28+20*int(ip[0]>>4&2/2):]) // IPv6's header is 20 bytes longer
		}
	}
	require.Len(tb, ds, 67)
	files, err := filepath.Glob("wire/testdata/*.pcap")
	require.NoError(tb, err)
	for _, name := range files {
		ps := wiretest.Read(tb, name)
		for _, p := range ps[:min(len(ps), 72)] {
			ds = append(ds, p.Packet)
		}
	}
	return ds
}

// A victim is the endpoint that is fed, and its memory.
//
//	guard | granted to the peer | receives and Reads | guard
type victim struct {
	*rdmatest.End
	in      *injector
	first   wire.PSN // that it sends
	mem     []byte
	granted rdma.MemoryRegion
	own     rdma.MemoryRegion
}

const fuzzPage = 4096

func newVictim(t *testing.T, ep rdma.Endpoint, in *injector) *victim {
	v := &victim{End: rdmatest.NewEnd(t, ep, rdmatest.Config{Memory: fuzzPage, Access: rdma.LocalWrite}), in: in, mem: make([]byte, 4*fuzzPage)}
	var err error
	d := ep.Device()
	v.granted, err = d.Register(v.mem[fuzzPage:2*fuzzPage], rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	require.NoError(t, err)
	v.own, err = d.Register(v.mem[2*fuzzPage:3*fuzzPage], rdma.LocalWrite)
	require.NoError(t, err)
	for i := range uint64(8) {
		_, err := v.QP.PostRecv([]rdma.RecvWR{{ID: i, SGL: []rdma.SGE{rdma.Piece(v.own, i*64, 64)}}})
		require.NoError(t, err)
	}
	return v
}

// feed runs the instructions of an input.
func feed(t *testing.T, in []byte) {
	n := link.NewNet(1, link.NetOptions{Weather: link.Weather{Delay: 10 * time.Microsecond}})
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	fed := &injector{Link: n.Link(b)}
	p := New(Options{Addr: a, Seed: 1, Link: func(a netip.Addr) (link.Link, error) { return n.Link(a), nil }})
	q := New(Options{Addr: b, Seed: 2, Link: func(netip.Addr) (link.Link, error) { return fed, nil }})
	l, err := q.Listen(netip.AddrPortFrom(b, 3260))
	require.NoError(t, err)
	ep, err := p.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	peer := rdmatest.NewEnd(t, ep, rdmatest.Config{Memory: fuzzPage})
	var v *victim
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		ep, err := l.Accept(t.Context())
		require.NoError(t, err)
		v = newVictim(t, ep, fed)
		require.NoError(t, ep.Accept(rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	}()
	require.NoError(t, ep.Connect(t.Context(), rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	<-accepted
	conn := ep.(*endpoint).conn
	fed.expected, v.first = wire.PSN(conn.REQ.PSN), wire.PSN(conn.REP.PSN)
	n.Partition(a, b, true) // from here on the input is the peer
	_, err = v.QP.PostSend([]rdma.SendWR{
		{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(v.own, 1024, 512)}, RemoteAddr: peer.MR.Addr(), RKey: peer.MR.RKey()},
		{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(v.own, 2048, 64)}},
	})
	require.NoError(t, err)
	v.run(t, q, in)
	for i, c := range v.mem {
		if i < fuzzPage || i >= 2*fuzzPage+2048 { // behind receives and Read
			require.Zero(t, c, "byte %d of guarded memory was written", i)
		}
	}
	require.Equal(t, make([]byte, fuzzPage), v.Memory, "memory that nobody was granted")
	v.Close()
	peer.Close()
	require.NoError(t, p.Close())
	require.NoError(t, q.Close())
}

// run feeds the datagrams.
func (v *victim) run(t *testing.T, q *Provider, in []byte) {
	path := wire.NewPath(netip.MustParseAddr("10.0.0.1"), q.o.Addr)
	for n := 0; len(in) >= instructionHeader && n < 200; n++ {
		flags, size := in[0], int(binary.BigEndian.Uint16(in[1:]))
		b := slices.Clone(in[instructionHeader:min(len(in), instructionHeader+size)])
		in = in[instructionHeader+len(b):]
		if flags&later != 0 {
			time.Sleep(100 * time.Microsecond)
		}
		from := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), 4791)
		if flags&fromPeer != 0 {
			from = netip.AddrPortFrom(path.Src(), 4791)
		}
		if pkt, err := wire.Parse(b); err == nil {
			v.fix(pkt, flags)
			if flags&fixICRC != 0 {
				path.Seal(pkt, from.Port(), 0)
			}
		}
		joined := max(1, len(b))
		if flags&cutUp != 0 {
			joined = min(joined, 32)
		}
		v.in.inject(from, joined, b)
		synctest.Wait()
	}
	time.Sleep(time.Second)
	require.NotNil(t, q.QueuePairs(), "the endpoint is there still")
}

// fix makes a packet one for v's queue pair, whatever it was.
func (v *victim) fix(p wire.Packet, flags byte) {
	if flags&fixQP != 0 && p.DestQP() != wire.GSI {
		p.SetDestQP(wire.QPN(v.QP.Num()))
	}
	if flags&fixPSN != 0 {
		if p.Opcode().Is(wire.Response) { // to one of the first that v sends
			p.SetPSN(v.first.Add(uint32(p.PSN() & 3)))
		} else {
			v.in.mu.Lock()
			p.SetPSN(v.in.expected)
			v.in.mu.Unlock()
			p.SetAckReq() // so that we learn what comes next
		}
	}
	if flags&fixKey != 0 && p.Opcode().HasRETH() {
		addr, _, n := p.RETH()
		p.SetRETH(v.granted.Addr()+addr%fuzzPage, v.granted.RKey(), n)
	}
}
