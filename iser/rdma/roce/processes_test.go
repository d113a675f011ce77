package roce_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// peerEnv makes the test binary a process that lends memory: see TestLendMemory.
const peerEnv = "ROCE_LEND_MEMORY"

const lent = 1 << 20 // bytes

// TestLendMemory is not a test by itself: as the other process of BenchmarkTransferBetweenProcesses it lends memory
// to whoever connects, until he disconnects. Its REP carries the memory's address and key.
func TestLendMemory(t *testing.T) {
	if os.Getenv(peerEnv) == "" {
		t.Skip("runs only as the other process of a benchmark")
	}
	p := open(t, roce.Options{})
	l, err := p.Listen(loopback())
	require.NoError(t, err)
	fmt.Printf("lending at %v\n", l.Addr())
	ep, err := l.Accept(t.Context())
	require.NoError(t, err)
	e := rdmatest.NewEnd(t, ep, rdmatest.Config{Memory: lent})
	e.Recv(1, 0, 1) // ends when the peer goes
	private := binary.BigEndian.AppendUint64(nil, e.MR.Addr())
	private = binary.BigEndian.AppendUint32(private, e.MR.RKey())
	require.NoError(t, ep.Accept(rdma.ConnParam{PrivateData: private, ResponderResources: 16, InitiatorDepth: 16}))
	var cs [1]rdma.Completion
	for n := 0; n == 0; {
		require.NoError(t, e.RecvCQ.Wait(time.Time{}))
		n, err = e.RecvCQ.Poll(cs[:])
		require.NoError(t, err)
	}
	e.Close()
	require.NoError(t, l.Close())
}

// BenchmarkTransferBetweenProcesses is BenchmarkTransfer with the memory in another process. In the same run, raw UDP
// with segmentation offload is BenchmarkOneWay of package link.
func BenchmarkTransferBetweenProcesses(b *testing.B) {
	for _, op := range []struct {
		name string
		op   rdma.OpCode
	}{{"Write", rdma.OpWrite}, {"Read", rdma.OpRead}} {
		for _, size := range []uint32{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", op.name, size>>10), func(b *testing.B) {
				e, addr, key := borrow(b)
				p := &pump{e: e, depth: max(2, 8*(64<<10)/int(size))}
				p.sgl[0] = rdma.Piece(e.MR, 0, size)
				p.chain[0] = rdma.SendWR{ID: 1, Op: op.op, Flags: rdma.Signaled, SGL: p.sgl[:], RemoteAddr: addr, RKey: key}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					p.post()
				}
				p.reap(0)
				require.Zero(b, p.bad)
			})
		}
	}
}

// borrow starts the other process and connects to it.
func borrow(b *testing.B) (e *rdmatest.End, addr uint64, key uint32) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestLendMemory$")
	cmd.Env = append(os.Environ(), peerEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { require.NoError(b, cmd.Wait()) }) // after the connection's end
	lines := bufio.NewScanner(out)
	require.True(b, lines.Scan(), "the other process has not started")
	_, at, _ := strings.Cut(lines.Text(), "lending at ")
	to, err := netip.ParseAddrPort(at)
	require.NoError(b, err, lines.Text())

	p := open(b, roce.Options{})
	ep, err := p.Resolve(b.Context(), to)
	require.NoError(b, err)
	e = rdmatest.NewEnd(b, ep, rdmatest.Config{Memory: lent})
	b.Cleanup(e.Close)
	require.NoError(b, ep.Connect(b.Context(), rdma.ConnParam{ResponderResources: 16, InitiatorDepth: 16}))
	private := ep.Peer().PrivateData
	return e, binary.BigEndian.Uint64(private), binary.BigEndian.Uint32(private[8:])
}
