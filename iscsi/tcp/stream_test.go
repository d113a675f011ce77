package tcp

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A chunked connection moves at most size bytes a call, as networks do.
type chunked struct {
	net.Conn
	size int
}

func (c chunked) Read(b []byte) (int, error) { return c.Conn.Read(b[:min(len(b), c.size)]) }

func (c chunked) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = c.Conn.Write(b[n:min(len(b), n+c.size)])
		n += k
	}
	return n, err
}

// DC-01.
func TestChunksOfAnySize(t *testing.T) {
	for _, size := range []int{1, 7, 48, 49, 1447} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n := 1 << 20
			if size < 48 {
				n = 64 << 10 // every call costs the same
			}
			p := params(func(p *iscsi.Params) {
				p.MaxSendData, p.MaxBurstLength, p.HeaderDigest, p.DataDigest = 4096, 262144, size == 7, size == 49
			})
			a, b := socketPair(t)
			c, _ := rig(t, chunked{a, size}, chunked{b, size}, p, p, 1<<21)
			roundTrip(t, c, 32<<10)
			roundTrip(t, c, n)
		})
	}
}

// messages are PDUs to the target of every shape that a state of the receiver can be in: AHS, data in the
// buffer, data that goes to its task. ends are the PDUs' ends.
func messages(p *peer) (b []byte, ends []int) {
	for _, pdu := range [][]byte{
		p.wire(command(opWrite, 1, 0, 8192, 8192), []byte{0, 1, 2, 0, 5, 6, 7, 8}, []byte("immediate data")),
		p.wire(dataOut(1, 1<<16, 0, 14, true), nil, make([]byte, 8192-14)),
		p.wire(&iscsi.NOPOut{ITT: 9, TTT: iscsi.ReservedTag}, nil, []byte("ping")),
	} {
		b = append(b, pdu...)
		ends = append(ends, len(b))
	}
	return b, ends
}

// A tape is a connection whose peer has said everything beforehand and reads everything. Each chunk comes with
// one Read or more.
type tape struct {
	net.Conn // of a pipe: addresses only
	chunks   [][]byte
	cur      []byte
	wrote    atomic.Int64
}

func newTape(chunks ...[]byte) *tape {
	near, _ := net.Pipe()
	return &tape{Conn: near, chunks: chunks}
}

func (s *tape) Read(b []byte) (int, error) {
	for len(s.cur) == 0 {
		if len(s.chunks) == 0 {
			return 0, io.EOF
		}
		s.cur, s.chunks = s.chunks[0], s.chunks[1:]
	}
	n := copy(b, s.cur)
	s.cur = s.cur[n:]
	return n, nil
}

func (s *tape) Write(b []byte) (int, error) {
	s.wrote.Add(int64(len(b)))
	return len(b), nil
}

func (s *tape) SetReadDeadline(time.Time) error  { return nil }
func (s *tape) SetWriteDeadline(time.Time) error { return nil }

// feed gives b to a disk, first the command, then, when its R2T is due, the rest. It returns why the
// connection ended, how many PDUs there were, and whether one of them had a wrong data digest.
func feed(p iscsi.Params, b []byte, command int) (seen int, broken bool, err error) {
	command = min(len(b), command)
	d := newDisk(newTape(b[:command], b[command:]), p, 8192)
	d.seen = func(ev *iscsi.Event) bool {
		if ev.Kind == iscsi.EventPDU {
			seen++
		}
		broken = broken || ev.DigestError
		return ev.DigestError // not to be used
	}
	err = d.run()
	return seen, broken, err
}

// dull says that byte n is in the middle of the data, where all are the same.
func dull(n, total int) bool { return n > 300 && n < total-150 && n%97 != 0 }

func TestEveryTruncationIsAnUnexpectedEOF(t *testing.T) {
	for _, digests := range []bool{false, true} {
		p := params(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = digests, digests })
		b, ends := messages(&peer{t: t, hd: digests, dd: digests})
		for n := 0; n <= len(b); n++ {
			if dull(n, len(b)) {
				continue
			}
			want := io.ErrUnexpectedEOF
			if n == 0 || slices.Contains(ends, n) {
				want = io.EOF
			}
			seen, _, err := feed(p, b[:n], ends[0])
			require.ErrorIs(t, err, want, "first %d of %d bytes", n, len(b))
			require.Equal(t, n == len(b), seen == 2, "%d PDUs of %d bytes", seen, n)
		}
	}
}

func TestEveryCorruptedByteIsNoticed(t *testing.T) {
	p := params(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = true, true })
	b, ends := messages(&peer{t: t, hd: true, dd: true})
	body := ends[0] - 16 - iscsi.DigestSize          // immediate data, padding and its digest
	ping := ends[2] - len("ping") - iscsi.DigestSize // the same of the ping
	for n := range b {
		if dull(n, len(b)) {
			continue
		}
		b[n] ^= 0x10
		_, broken, err := feed(p, b, ends[0])
		b[n] ^= 0x10
		switch {
		case n >= body && n < ends[0]: // the command is not executed; then its Data-Out answers no R2T
			require.True(t, broken, "byte %d", n)
			require.NotErrorIs(t, err, ErrDigest)
		case n >= ping: // a matter of the engine
			require.True(t, broken, "byte %d", n)
			require.ErrorIs(t, err, io.EOF)
		case n == ends[1]+4: // the last header announces more AHS than there is to come
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		default:
			require.ErrorIs(t, err, ErrDigest, "byte %d", n)
			require.False(t, broken)
		}
	}
}

func TestCorruptedDataInEndsTheConnection(t *testing.T) {
	r := attach(t, params(func(p *iscsi.Params) { p.DataDigest = true }))
	var req request
	cmd, _ := r.begin(&req, [][]byte{make([]byte, 100)}, nil)
	b := r.wire(dataIn(cmd.ITT, 0, 0, true), nil, make([]byte, 100))
	b[100] ^= 1
	r.write(b)
	require.ErrorIs(t, r.wait(&req), ErrDigest)
	assert.False(t, req.responded)
	assert.True(t, req.released)
}

// SE-02 and SE-10: before login nothing is believed, and nothing is allocated for it.
func TestGarbageBeforeLogin(t *testing.T) {
	login := func(n uint32, ahs byte) []byte {
		var bhs [iscsi.BHSSize]byte
		(&iscsi.LoginRequest{}).Put(&bhs)
		iscsi.SetDataLength(&bhs, n)
		bhs[4] = ahs
		return bhs[:]
	}
	for _, c := range []struct {
		name string
		b    []byte
		err  error
	}{
		{"8193 bytes", login(8193, 0), iscsi.ErrLength},
		{"64 KiB", login(65536, 0), iscsi.ErrLength},
		{"16 MiB", login(0xffffff, 0), iscsi.ErrLength},
		{"16 MiB with AHS", append(login(0xffffff, 255), make([]byte, 1020)...), iscsi.ErrLength},
		{"short of AHS", login(0, 255), io.ErrUnexpectedEOF},
		{"short of data", login(8192, 0), io.ErrUnexpectedEOF},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: scanner\r\n\r\n"), iscsi.ErrLength},
		{"TLS", append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 64)...), iscsi.ErrLength},
		{"one byte", []byte{0x42}, io.ErrUnexpectedEOF},
		{"nothing", nil, io.EOF},
		{"Data-Out for an R2T", (&peer{}).wire(dataOut(0, 0, 0, 0, true), nil, make([]byte, 64)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			dm := NewTarget(near)
			defer dm.Close()
			go func() {
				_, _ = far.Write(c.b)
				_ = far.Close()
			}()
			evs := make([]iscsi.Event, 4)
			n, err := dm.Wait(evs, time0)
			require.Zero(t, n)
			if c.err == nil {
				var pe *ProtocolError
				require.ErrorAs(t, err, &pe)
				return
			}
			require.ErrorIs(t, err, c.err)
		})
	}
}

func TestLongestLoginPDUFits(t *testing.T) {
	near, far := net.Pipe()
	dm := NewTarget(near)
	defer dm.Close()
	raw := &peer{t: t, nc: far}
	data := make([]byte, maxLoginData)
	stamp(data, 1)
	go raw.write(raw.wire(&iscsi.LoginRequest{ITT: 3}, make([]byte, maxAHS), data))
	evs := collect(t, dm, 1)
	assert.Equal(t, data, evs[0].Data)
	assert.Len(t, evs[0].AHS, maxAHS)
}

func TestMemoryBeforeLogin(t *testing.T) {
	const n = 100
	var before, after runtime.MemStats
	dms := make([]iscsi.TargetDatamover, n)
	near, far := net.Pipe()
	defer far.Close()
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range dms {
		dms[i] = NewTarget(near)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	assert.Less(t, (after.HeapAlloc-before.HeapAlloc)/n, uint64(64<<10))
	runtime.KeepAlive(dms)
}

// What follows the last login PDU may have digests already and must wait for Enable.
func TestOnePDUAtATimeBeforeEnable(t *testing.T) {
	near, far := net.Pipe()
	dm := NewInitiator(near)
	defer dm.Close()
	plain, digests := &peer{t: t, nc: far}, &peer{t: t, nc: far, hd: true, dd: true}
	b := plain.wire(&iscsi.LoginResponse{ITT: 1}, nil, []byte("a=b\x00"))
	b = append(b, digests.wire(&iscsi.NOPIn{ITT: 2, TTT: 3}, nil, []byte("ping"))...)
	go plain.write(b)
	evs := make([]iscsi.Event, 4)
	n, err := dm.Wait(evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	p := params(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = true, true })
	require.NoError(t, dm.Enable(&p, &iscsi.Sequence{}))
	assert.Equal(t, "a=b\x00", string(evs[0].Data), "the view survives Enable")
	require.NoError(t, dm.Flush())
	n, err = dm.Wait(evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, "ping", string(evs[0].Data))
	assert.False(t, evs[0].DigestError)
}

func TestLoginPDUsHaveNoDigests(t *testing.T) {
	near, far := net.Pipe()
	dm := NewTarget(near)
	defer dm.Close()
	p := params(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = true, true })
	require.NoError(t, dm.Enable(&p, &iscsi.Sequence{}))
	for _, h := range []header{&iscsi.LoginResponse{ITT: 1}, &iscsi.NOPIn{ITT: 2}} {
		var bhs [iscsi.BHSSize]byte
		h.Put(&bhs)
		iscsi.SetDataLength(&bhs, 3)
		dm.Send(&bhs, []byte("abc"))
	}
	require.NoError(t, dm.Flush())
	plain, digests := &peer{t: t, nc: far}, &peer{t: t, nc: far, hd: true, dd: true}
	assert.Equal(t, "abc", string(plain.recv(&iscsi.LoginResponse{})))
	assert.Equal(t, "abc", string(digests.recv(&iscsi.NOPIn{})))
}

func TestSegmentLongerThanDeclared(t *testing.T) {
	r := serve(t, params(func(p *iscsi.Params) { p.MaxRecvData = 16384 }))
	r.send(&iscsi.NOPOut{ITT: 1, TTT: iscsi.ReservedTag}, make([]byte, 16384))
	assert.Len(t, r.recv(&iscsi.NOPIn{}), 16384)
	r.send(&iscsi.NOPOut{ITT: 1, TTT: iscsi.ReservedTag}, make([]byte, 16388))
	r.closed()
	require.ErrorIs(t, r.over(), iscsi.ErrLength)
	assert.Error(t, NewTarget(r.nc).Enable(&iscsi.Params{MaxRecvData: maxRecvData + 1}, nil))
}

// Views live until Flush, also if the engine waits again before.
func TestViewsLiveUntilFlush(t *testing.T) {
	near, far := net.Pipe()
	d := newDisk(near, params(), 4096)
	defer d.dm.Close()
	raw := &peer{t: t, nc: far}
	var want [3][]byte
	for i := range want {
		want[i] = make([]byte, 200<<10)
		stamp(want[i], uint64(i))
	}
	go func() {
		for i := range want {
			raw.send(&iscsi.NOPOut{ITT: uint32(i), TTT: iscsi.ReservedTag}, want[i])
		}
	}()
	for i, ev := range collect(t, d.dm, len(want)) {
		assert.Equal(t, want[i], ev.Data)
		assert.EqualValues(t, i, iscsi.ITTOf(ev.BHS))
	}
}
