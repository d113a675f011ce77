package capture

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/link"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
	six   = netip.MustParseAddr("2001:db8::1")
)

// sight is a run of packets of size bytes each from here to there, or the other way.
func sight(sent bool, data []byte, size int) link.Sight {
	s := link.Sight{Link: here, Src: netip.AddrPortFrom(here, 4791), Dst: netip.AddrPortFrom(there, 4791), Data: data, Size: size, Sent: sent}
	if !sent {
		s.Src, s.Dst = netip.AddrPortFrom(there, 0xc001), s.Src
	}
	return s
}

// readAll reads a capture up to an error.
func readAll(b []byte) (ps []Packet, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		var p Packet
		if err := r.Next(&p); err != nil {
			return ps, err
		}
		p.Data = bytes.Clone(p.Data)
		ps = append(ps, p)
	}
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(string(bytes.Join(bytes.Fields([]byte(s)), nil)))
	require.NoError(t, err)
	return b
}

// TestBytesOfAFile: a section, an interface, a packet with a drop before it, statistics, to the byte.
func TestBytesOfAFile(t *testing.T) {
	at := time.Unix(1, 0x0102)
	b := appendSection(nil, "iser")
	b = appendInterface(b, here)
	s := sight(true, []byte("data!"), 5)
	b = appendPacket(b, 0, at, &s, s.Data, 3, 2)
	b = appendStatistics(b, 0, at, 9, 2)
	assert.Equal(t, unhex(t, `
		0a0d0d0a 28000000 4d3c2b1a 0100 0000 ffffffffffffffff 0400 0400 69736572 0000 0000 28000000
		01000000 7c000000 6500 0000 00000000
			0200 0e00 726f6365203139322e302e322e31 0000
			0300 3500 526f43457632206f66206f6e652070726f636573733b20495020616e6420554450206865616465727320617265206d616465207570 000000
			0400 0800 c0000201 ffffffff
			0900 0100 09 000000 0000 0000 7c000000`), b[:0x28+0x7c])
	assert.Equal(t, unhex(t, `
		06000000 5c000000 00000000 00000000 02cb9a3b 21000000 21000000
			4500 0021 0003 4000 4011 b6c5 c0000201 c0000202 12b7 12b7 000d 0000 6461746121 000000
			0200 0400 02000000
			0400 0800 0200000000000000 0000 0000 5c000000
		05000000 34000000 00000000 00000000 02cb9a3b
			0400 0800 0900000000000000
			0500 0800 0200000000000000 0000 0000 34000000`), b[0x28+0x7c:])
	assert.Len(t, appendStatistics(nil, 0, at, 9, 2), statisticsSize)
	s.Src, s.Dst = netip.AddrPortFrom(six, 1), netip.AddrPortFrom(six, 2)
	assert.LessOrEqual(t, len(appendPacket(nil, 0, at, &s, s.Data, 3, 2)), packetRoom+len(s.Data))
	assert.LessOrEqual(t, len(appendInterface(nil, netip.MustParseAddr("fe80:1111:2222:3333:4444:5555:6666:7777%interface-name-15"))), interfaceRoom)
}

// TestHeadersOfIPv6: no checksum, which RDMA devices do not make either.
func TestHeadersOfIPv6(t *testing.T) {
	b := appendHeaders(nil, netip.AddrPortFrom(six, 4791), netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), 4791), 5, 0)
	assert.Equal(t, unhex(t, `6000 0000 000d 1140 20010db8000000000000000000000001 20010db8000000000000000000000002 12b7 12b7 000d 0000`), b)
}

// TestWhatIsSeenIsRead: runs of both directions come back packet by packet, in order, and so do the losses of the link.
func TestWhatIsSeenIsRead(t *testing.T) {
	var f bytes.Buffer
	c, err := New(&f, Options{Application: "test"})
	require.NoError(t, err)
	c.See(sight(true, []byte("aaaabbbbcc"), 4))
	s := sight(false, []byte("dddd"), 4)
	s.Lost = 7
	c.See(s)
	c.See(s) // a loss is told once
	s.Link = there
	c.See(s) // what a link lost before its first packet is no gap
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	c.See(s)
	assert.Equal(t, Counters{Packets: 6, Bytes: int64(f.Len())}, c.Counters())

	ps, err := readAll(f.Bytes())
	require.Equal(t, io.EOF, err)
	require.Len(t, ps, 6)
	for i, want := range []struct {
		data string
		dir  Direction
		id   byte
		lost uint64
		from string
	}{
		{"aaaa", Outbound, 0, 0, "roce 192.0.2.1"},
		{"bbbb", Outbound, 1, 0, "roce 192.0.2.1"},
		{"cc", Outbound, 2, 0, "roce 192.0.2.1"},
		{"dddd", Inbound, 0, 7, "roce 192.0.2.1"},
		{"dddd", Inbound, 0, 0, "roce 192.0.2.1"},
		{"dddd", Inbound, 0, 0, "roce 192.0.2.2"},
	} {
		p := ps[i]
		assert.Equal(t, want.data, string(p.Data[28:]))
		assert.Equal(t, want.dir, p.Direction)
		assert.Equal(t, want.id, p.Data[5])
		assert.Equal(t, want.lost, p.Lost)
		assert.Equal(t, want.from, p.Interface)
		assert.Equal(t, RawIP, p.LinkType)
		assert.Equal(t, len(p.Data), p.Size)
		assert.WithinDuration(t, time.Now(), p.Time, time.Minute)
		assert.False(t, i > 0 && p.Time.Before(ps[i-1].Time))
	}
}

// A gate is a file whose writes wait.
type gate struct {
	bytes.Buffer
	open chan struct{}
}

func (g *gate) Write(b []byte) (int, error) {
	if g.Len() > 0 { // the header goes through
		<-g.open
	}
	return g.Buffer.Write(b)
}

// TestAFileThatIsSlowLosesPackets: who sends never waits for the file, and the file tells how many packets it lacks.
func TestAFileThatIsSlowLosesPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		c, err := New(g, Options{Queue: 4 << 10})
		require.NoError(t, err)
		data := bytes.Repeat([]byte{1}, 1000)
		c.See(sight(true, data, 1000))
		time.Sleep(flushDelay)
		synctest.Wait() // the writer has it, and waits
		for range 10 {
			c.See(sight(true, data, 1000))
		}
		assert.EqualValues(t, 7, c.Counters().Dropped, "three more fit the queue")
		close(g.open)
		time.Sleep(flushDelay)
		synctest.Wait()
		c.See(sight(true, data, 1000))
		require.NoError(t, c.Close())
		ps, err := readAll(g.Bytes())
		require.Equal(t, io.EOF, err)
		require.Len(t, ps, 5)
		assert.EqualValues(t, 7, ps[4].Lost)
		assert.Equal(t, Counters{Packets: 12, Dropped: 7, Bytes: int64(g.Len())}, c.Counters())
		assert.Contains(t, g.String(), string(unhex(t, "0400 0800 0c00000000000000 0500 0800 0700000000000000")), "statistics")
	})
}

// TestLimit: the file never gets longer than that, and ends in order.
func TestLimit(t *testing.T) {
	var f bytes.Buffer
	_, err := New(&f, Options{Limit: MinLimit - 1})
	require.Error(t, err)
	c, err := New(&f, Options{Limit: MinLimit})
	require.NoError(t, err)
	for range 100 {
		c.See(sight(true, make([]byte, 1000), 1000))
		c.See(sight(true, make([]byte, 10), 10)) // would fit for longer, but would hide the gap
	}
	require.NoError(t, c.Close())
	n := c.Counters()
	assert.LessOrEqual(t, f.Len(), MinLimit)
	assert.Greater(t, f.Len(), MinLimit-2000)
	assert.EqualValues(t, f.Len(), n.Bytes)
	ps, err := readAll(f.Bytes())
	require.Equal(t, io.EOF, err)
	assert.EqualValues(t, n.Packets-n.Dropped, len(ps))
	assert.EqualValues(t, 200, n.Packets)
	for i, p := range ps {
		assert.Equal(t, i%2 == 0, len(p.Data) > 1000, "packet %d", i)
	}
}

// TestLimitHoldsForTheStatisticsToo, of all interfaces, however close to it the packets come.
func TestLimitHoldsForTheStatisticsToo(t *testing.T) {
	for size := 1; size < 100; size += 4 {
		var f bytes.Buffer
		c, err := New(&f, Options{Limit: MinLimit})
		require.NoError(t, err)
		for i := range 1000 {
			s := sight(true, make([]byte, size), size)
			if i%2 == 0 {
				s.Link = there
			}
			c.See(s)
		}
		require.NoError(t, c.Close())
		require.LessOrEqual(t, f.Len(), MinLimit)
		require.Positive(t, c.Counters().Dropped)
	}
}

// A disk is full at some size.
type disk struct {
	bytes.Buffer
	room int
}

var errFull = errors.New("no space left on device")

func (d *disk) Write(b []byte) (int, error) {
	n := min(len(b), d.room-d.Len())
	_, _ = d.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func (d *disk) Truncate(n int64) error { d.Buffer.Truncate(int(n)); return nil }

// TestADiskThatIsFullLeavesWholeBlocks: at whatever byte it is full.
func TestADiskThatIsFullLeavesWholeBlocks(t *testing.T) {
	for room := 100; room < 2500; room += 37 {
		d := &disk{room: room}
		c, err := New(d, Options{})
		require.NoError(t, err)
		for range 2 {
			c.See(sight(true, make([]byte, 3000), 1000))
		}
		require.ErrorIs(t, c.Close(), errFull)
		n := c.Counters()
		ps, err := readAll(d.Bytes())
		require.Equal(t, io.EOF, err, "room for %d bytes", room)
		assert.EqualValues(t, d.Len(), n.Bytes)
		assert.GreaterOrEqual(t, uint64(len(ps)), n.Packets-n.Dropped)
		assert.EqualValues(t, 6, n.Packets)
	}
}

// TestAFileCutOffGivesWhatIsWhole: after kill -9, or while it is being written.
func TestAFileCutOffGivesWhatIsWhole(t *testing.T) {
	var f bytes.Buffer
	c, err := New(&f, Options{})
	require.NoError(t, err)
	c.See(sight(true, []byte("aaaabbbbcccc"), 4))
	require.NoError(t, c.Close())
	all, _ := readAll(f.Bytes())
	whole := 0
	for n := range f.Len() {
		ps, err := readAll(f.Bytes()[:n])
		if n < 4 {
			require.ErrorIs(t, err, ErrFormat)
			continue
		}
		if err != io.EOF {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
		} else {
			whole++
		}
		require.Equal(t, all[:len(ps)], append([]Packet{}, ps...))
	}
	assert.Equal(t, 5, whole, "behind section, interface and each packet")
}

func TestSeeingDoesNotAllocate(t *testing.T) {
	c, err := New(io.Discard, Options{})
	require.NoError(t, err)
	s := sight(true, make([]byte, 16*4096), 4096)
	assert.Zero(t, testing.AllocsPerRun(100, func() { c.See(s) }))
	require.NoError(t, c.Close())
}

// TestManySee: from many goroutines, each packet once or counted as dropped.
func TestManySee(t *testing.T) {
	var f bytes.Buffer
	c, err := New(&f, Options{Queue: 64 << 10})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				c.See(sight(i%2 == 0, make([]byte, 1050), 100))
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Close())
	ps, err := readAll(f.Bytes())
	require.Equal(t, io.EOF, err)
	n := c.Counters()
	assert.EqualValues(t, 8800, n.Packets)
	assert.EqualValues(t, n.Packets-n.Dropped, len(ps))
}

func BenchmarkSee(b *testing.B) {
	c, err := New(io.Discard, Options{})
	require.NoError(b, err)
	s := sight(true, make([]byte, 16*4096), 4096)
	b.SetBytes(int64(len(s.Data)))
	b.ReportAllocs()
	for b.Loop() {
		c.See(s)
	}
	n := c.Counters()
	b.ReportMetric(float64(n.Dropped)/float64(n.Packets), "dropped/packet")
	require.NoError(b, c.Close())
}
