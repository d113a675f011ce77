package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fakeUnit executes the commands that a Disk sends.
type fakeUnit struct {
	blocks    uint64
	blockSize uint32
	limit     uint32 // MAXIMUM TRANSFER LENGTH; 0: no page
	only10    bool   // READ CAPACITY (16) is not known
	protected bool
	dpofua    bool
	script    []unitAnswer // taken before anything else
	cdbs      [][]byte
	short     int // bytes that reads and writes leave out
}

type unitAnswer struct {
	status uint8
	sense  []byte
}

func (u *fakeUnit) execute(cdb []byte, in, out []byte) (uint8, []byte, int) {
	u.cdbs = append(u.cdbs, append([]byte(nil), cdb...))
	if len(u.script) > 0 {
		a := u.script[0]
		u.script = u.script[1:]
		return a.status, a.sense, 0
	}
	illegal := func(asc uint8) (uint8, []byte, int) {
		return statusCheckCondition, fixedSense(keyIllegalRequest, asc, 0), 0
	}
	switch cdb[0] {
	case opServiceActionIn16:
		if u.only10 {
			return illegal(0x20)
		}
		binary.BigEndian.PutUint64(in, u.blocks-1)
		binary.BigEndian.PutUint32(in[8:], u.blockSize)
	case opReadCapacity10:
		binary.BigEndian.PutUint32(in, uint32(u.blocks-1))
		binary.BigEndian.PutUint32(in[4:], u.blockSize)
	case opInquiry:
		if u.limit == 0 {
			return illegal(0x24)
		}
		page := make([]byte, 64)
		page[1], page[3] = pageBlockLimit, 60
		binary.BigEndian.PutUint32(page[8:], u.limit)
		return statusGood, nil, copy(in, page)
	case opModeSense6:
		if u.protected {
			in[2] |= 0x80
		}
		if u.dpofua {
			in[2] |= 0x10
		}
	case opRead10, opRead16, opWrite10, opWrite16:
		return statusGood, nil, len(in) + len(out) - u.short
	}
	return statusGood, nil, len(in) + len(out)
}

func openUnit(t *testing.T, u *fakeUnit) (*Session, *Disk, error) {
	t.Helper()
	s := openFake(t, newFakeTarget(u.execute), Options{PingInterval: -1})
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	d, err := s.Disk(t.Context(), iscsi.LUNFromNumber(3))
	return s, d, err
}

func attention(asc, ascq uint8) unitAnswer {
	return unitAnswer{statusCheckCondition, fixedSense(keyUnitAttention, asc, ascq)}
}

func TestDiskTakesUnitAttentions(t *testing.T) {
	u := &fakeUnit{blocks: 100, blockSize: 512, script: []unitAnswer{attention(0x29, 0), attention(0x3f, 0x0e), {statusBusy, nil}, {statusTaskSetFull, nil}}}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	assert.Equal(t, int64(51200), d.SizeBytes())
	assert.Equal(t, 512, d.BlockSize())
	assert.False(t, d.ReadOnly())
	u.script = []unitAnswer{attention(0x2a, 9)}
	assert.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0), "in I/O too")
	u.script = []unitAnswer{attention(0x29, 0), attention(0x29, 0)}
	assert.NoError(t, d.WriteAt(t.Context(), make([]byte, 512), 0))
	u.script = []unitAnswer{attention(0x29, 0)}
	assert.NoError(t, d.Flush(t.Context()))
}

func TestUnitAttentionsAreEvents(t *testing.T) {
	var met []string
	u := &fakeUnit{blocks: 100, blockSize: 512, script: []unitAnswer{attention(0x29, 0)}}
	s := openFake(t, newFakeTarget(u.execute), Options{PingInterval: -1, Attention: func(lun iscsi.LUN, what *StatusError) {
		met = append(met, fmt.Sprintf("%s %02x/%02x", lun, what.ASC, what.ASCQ))
	}})
	defer s.Close()
	d, err := s.Disk(t.Context(), iscsi.LUNFromNumber(3))
	require.NoError(t, err)
	u.script = []unitAnswer{attention(0x2a, 6), attention(0x2a, 9), {statusBusy, nil}}
	require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
	assert.Equal(t, []string{"3 29/00", "3 2a/06", "3 2a/09"}, met)
}

func TestDiskDoesNotRetryForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, a := range map[string]unitAnswer{"unit attention": attention(0x29, 0), "BUSY": {statusBusy, nil}} {
			u := &fakeUnit{}
			for range 1000 {
				u.script = append(u.script, a)
			}
			s := openFake(t, newFakeTarget(u.execute), Options{PingInterval: -1})
			_, err := s.Disk(t.Context(), 0)
			assert.ErrorContains(t, err, "lun 0: test unit ready")
			assert.ErrorContains(t, err, name)
			assert.LessOrEqual(t, len(u.cdbs), maxAttentions+1)
			require.NoError(t, s.Close())
		}
	})
}

func TestDiskWaitsForAUnitThatIsBecomingReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		becoming := unitAnswer{statusCheckCondition, fixedSense(keyNotReady, 4, 1)}
		u := &fakeUnit{blocks: 10, blockSize: 4096, script: []unitAnswer{becoming, becoming, becoming}}
		s := openFake(t, newFakeTarget(u.execute), Options{PingInterval: -1})
		start := time.Now()
		_, err := s.Disk(t.Context(), 0)
		require.NoError(t, err)
		assert.Equal(t, 3*notReadyDelay, time.Since(start))

		u.script = []unitAnswer{{statusCheckCondition, fixedSense(keyNotReady, 0x3a, 0)}}
		_, err = s.Disk(t.Context(), 0)
		assert.ErrorContains(t, err, "medium not present (2/3a/00)", "at once")
		for range 1000 {
			u.script = append(u.script, becoming)
		}
		_, err = s.Disk(t.Context(), 0)
		assert.ErrorContains(t, err, "becoming ready")
		ctx, stop := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer stop()
		_, err = s.Disk(ctx, 0)
		assert.ErrorContains(t, err, "becoming ready")
		require.NoError(t, s.Close())
	})
}

func TestDiskCapacity(t *testing.T) {
	for name, c := range map[string]struct {
		unit  fakeUnit
		size  int64
		piece int
		err   string
	}{
		"by (16)":          {fakeUnit{blocks: 1 << 33, blockSize: 512}, 1 << 42, maxPiece, ""},
		"by (10)":          {fakeUnit{blocks: 1 << 20, blockSize: 512, only10: true}, 1 << 29, maxPiece, ""},
		"blocks of 4096":   {fakeUnit{blocks: 100, blockSize: 4096}, 409600, maxPiece, ""},
		"blocks of 520":    {fakeUnit{blocks: 100, blockSize: 520}, 52000, maxPiece / 520 * 520, ""},
		"blocks of 1 MiB":  {fakeUnit{blocks: 100, blockSize: 1 << 20}, 100 << 20, 1 << 20, ""},
		"limit":            {fakeUnit{blocks: 1 << 20, blockSize: 512, limit: 64}, 1 << 29, 32 << 10, ""},
		"limit beyond":     {fakeUnit{blocks: 1 << 20, blockSize: 512, limit: 1 << 31}, 1 << 29, maxPiece, ""},
		"blocks of 0":      {fakeUnit{blocks: 100}, 0, 0, "blocks of 0 bytes"},
		"huge blocks":      {fakeUnit{blocks: 100, blockSize: 1 << 25}, 0, 0, "blocks of 33554432 bytes"},
		"beyond an int64":  {fakeUnit{blocks: 1 << 62, blockSize: 512}, 0, 0, "a capacity of"},
		"2^64 blocks":      {fakeUnit{blocks: 0, blockSize: 512}, 0, 0, "a capacity of"},
		"write protection": {fakeUnit{blocks: 1, blockSize: 512, protected: true}, 512, maxPiece, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, d, err := openUnit(t, &c.unit)
			if c.err != "" {
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.size, d.SizeBytes())
			assert.Equal(t, c.piece, d.piece)
			assert.Equal(t, c.unit.protected, d.ReadOnly())
		})
	}
}

func TestTransfersAreSplit(t *testing.T) {
	u := &fakeUnit{blocks: 1 << 34, blockSize: 512, limit: 16}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	for _, c := range []struct {
		blocks int
		at     int64
		write  bool
		want   []string
	}{
		{1, 5, false, []string{"28 5+1"}},
		{16, 0, true, []string{"2a 0+16"}},
		{17, 0, false, []string{"28 0+16", "28 16+1"}},
		{33, 1<<32 - 17, true, []string{"2a 4294967279+16", "8a 4294967295+16", "8a 4294967311+1"}},
		{0, 3, false, nil},
	} {
		u.cdbs = nil
		p := make([]byte, c.blocks*512)
		if c.write {
			require.NoError(t, d.WriteAt(t.Context(), p, c.at*512))
		} else {
			require.NoError(t, d.ReadAt(t.Context(), p, c.at*512))
		}
		var got []string
		for _, b := range u.cdbs {
			lba, n := uint64(binary.BigEndian.Uint32(b[2:])), uint32(binary.BigEndian.Uint16(b[7:]))
			if b[0] >= 0x80 {
				lba, n = binary.BigEndian.Uint64(b[2:]), binary.BigEndian.Uint32(b[10:])
			}
			got = append(got, fmt.Sprintf("%02x %d+%d", b[0], lba, n))
		}
		assert.Equal(t, c.want, got)
	}
}

func TestRanges(t *testing.T) {
	u := &fakeUnit{blocks: 100, blockSize: 512}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	u.cdbs = nil
	for _, c := range []struct {
		n   int
		off int64
	}{{512, -512}, {511, 0}, {512, 1}, {512, 51200}, {1024, 50688}, {512, 1<<63 - 512}} {
		assert.Error(t, d.ReadAt(t.Context(), make([]byte, c.n), c.off), "%d at %d", c.n, c.off)
	}
	assert.NoError(t, d.ReadAt(t.Context(), nil, 51200))
	assert.Empty(t, u.cdbs, "nothing was sent")
}

func TestShortTransfersAreErrors(t *testing.T) {
	u := &fakeUnit{blocks: 100, blockSize: 512}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	u.short = 512
	assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 1024), 0), io.ErrUnexpectedEOF)
	assert.ErrorIs(t, d.WriteAt(t.Context(), make([]byte, 1024), 0), io.ErrShortWrite)
}

func TestAPieceThatFailsFailsTheTransfer(t *testing.T) {
	u := &fakeUnit{blocks: 1 << 20, blockSize: 512}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	u.cdbs = nil
	u.script = []unitAnswer{{0, nil}, {statusCheckCondition, fixedSense(3, 0x11, 0)}}
	err = d.WriteAt(t.Context(), make([]byte, 40*maxPiece), 0)
	var st *StatusError
	require.ErrorIs(t, err, io.ErrShortWrite, "the first piece moved nothing")
	assert.Less(t, len(u.cdbs), 40, "no more pieces behind an error")
	u.script = []unitAnswer{{statusCheckCondition, fixedSense(3, 0x11, 0)}}
	err = d.ReadAt(t.Context(), make([]byte, 2*maxPiece), 0)
	require.ErrorAs(t, err, &st)
	assert.EqualError(t, err, "lun 3: read 524288 bytes at 0: CHECK CONDITION: medium error, unrecovered read error (3/11/00)")
}

func TestPiecesRunSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &fakeUnit{blocks: 1 << 20, blockSize: 512}
		ft := newFakeTarget(u.execute)
		s := openFake(t, ft, Options{PingInterval: -1})
		d, err := s.Disk(t.Context(), 0)
		require.NoError(t, err)
		ft.execute = nil // hold everything
		ft.commands = nil
		ctx, stop := context.WithCancel(t.Context())
		var done atomic.Bool
		go func() {
			assert.ErrorIs(t, d.ReadAt(ctx, make([]byte, 20*maxPiece), 0), context.Canceled)
			done.Store(true)
		}()
		synctest.Wait()
		assert.Len(t, ft.commands, maxPieces)
		stop()
		synctest.Wait()
		assert.True(t, done.Load())
		assert.Len(t, ft.detached, maxPieces, "no piece is in the caller's buffer any more")
		require.NoError(t, s.Close())
	})
}

func TestLUNList(t *testing.T) {
	answer := func(n int) func(cdb, in, _ []byte) (uint8, []byte, int) {
		return func(cdb, in, _ []byte) (uint8, []byte, int) {
			b := binary.BigEndian.AppendUint32(nil, uint32(n*8))
			b = append(b, 0, 0, 0, 0)
			for i := range min(n, iscsi.MaxLUNNumber+1) {
				b = binary.BigEndian.AppendUint64(b, uint64(iscsi.LUNFromNumber(i)))
			}
			return statusGood, nil, copy(in, b)
		}
	}
	for _, n := range []int{0, 1, 256, 257, 5000} {
		s := openFake(t, newFakeTarget(answer(n)), Options{PingInterval: -1})
		luns, err := s.LUNs(t.Context())
		require.NoError(t, err)
		require.Len(t, luns, n)
		for i, l := range luns {
			assert.Equal(t, iscsi.LUNFromNumber(i), l)
		}
		require.NoError(t, s.Close())
	}
	s := openFake(t, newFakeTarget(answer(1<<28)), Options{PingInterval: -1})
	luns, err := s.LUNs(t.Context())
	require.NoError(t, err)
	assert.Len(t, luns, (maxLUNList-8)/8, "bounded, whatever the target says")
	require.NoError(t, s.Close())
	s = openFake(t, newFakeTarget(func(_, _, _ []byte) (uint8, []byte, int) { return statusGood, nil, 7 }), Options{PingInterval: -1})
	_, err = s.LUNs(t.Context())
	assert.ErrorContains(t, err, "answered with 7 bytes")
	require.NoError(t, s.Close())
}

func TestInquiryIsCutToItsLength(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		vpd  bool
		page uint8
		want int
		err  string
	}{
		"standard":         {append([]byte{0, 0, 6, 2, 31}, make([]byte, 100)...), false, 0, 36, ""},
		"longer than sent": {[]byte{0, 0, 6, 2, 200, 1, 2}, false, 0, 7, ""},
		"page":             {append([]byte{0, 0x83, 0, 8}, make([]byte, 100)...), true, 0x83, 12, ""},
		"another page":     {append([]byte{0, 0x80, 0, 8}, make([]byte, 100)...), true, 0x83, 0, "page 0x83 answered with page 0x80"},
		"short":            {[]byte{0, 0, 0, 0}, false, 0, 0, "answered with 4 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []byte
			s := openFake(t, newFakeTarget(func(cdb, in, _ []byte) (uint8, []byte, int) {
				sent = append([]byte(nil), cdb...)
				return statusGood, nil, copy(in, c.data)
			}), Options{PingInterval: -1})
			defer s.Close()
			b, err := s.Inquiry(t.Context(), 0, c.vpd, c.page)
			if c.err != "" {
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Len(t, b, c.want)
			assert.Equal(t, byte(opInquiry), sent[0])
		})
	}
}

func TestSenseInWords(t *testing.T) {
	for want, r := range map[string]Result{
		"CHECK CONDITION: illegal request, logical block address out of range (5/21/00)": {Status: 2, Sense: fixedSense(5, 0x21, 0)},
		"CHECK CONDITION: illegal request, invalid field in CDB (5/24/07)":               {Status: 2, Sense: fixedSense(5, 0x24, 7)},
		"CHECK CONDITION: vendor specific (9/aa/bb)":                                     {Status: 2, Sense: fixedSense(9, 0xaa, 0xbb)},
		"CHECK CONDITION: not ready, logical unit is becoming ready (2/04/01)":           {Status: 2, Sense: []byte{0x72, 2, 4, 1, 0, 0, 0, 0}},
		"CHECK CONDITION: medium error (3/00/00)":                                        {Status: 2, Sense: []byte{0x70, 0, 3}},
		"CHECK CONDITION: medium error (3/00/00) ":                                       {Status: 2, Sense: []byte{0x70, 0, 3, 0, 0, 0, 0, 4, 0, 0, 0, 0, 9, 9}},
		"CHECK CONDITION: no sense (0/00/00)":                                            {Status: 2, Sense: []byte{0x7f, 1, 2, 3}},
		"CHECK CONDITION without sense data":                                             {Status: 2},
		"BUSY":                                                                           {Status: 8},
		"RESERVATION CONFLICT":                                                           {Status: 0x18},
		"TASK SET FULL":                                                                  {Status: 0x28},
		"ACA ACTIVE":                                                                     {Status: 0x30},
		"TASK ABORTED":                                                                   {Status: 0x40},
		"SCSI status 0x99":                                                               {Status: 0x99},
	} {
		err := r.Err()
		var st *StatusError
		require.ErrorAs(t, err, &st)
		assert.Equal(t, want, err.Error()+map[bool]string{true: " "}[want[len(want)-1] == ' '])
	}
	assert.NoError(t, Result{}.Err())
	assert.NoError(t, Result{Status: 4}.Err())
	for status := range 256 {
		for _, sense := range [][]byte{nil, {0x70}, {0x72}, {0x72, 1}, fixedSense(0xf, 0xff, 0xff)} {
			if err := (Result{Status: uint8(status), Sense: sense}).Err(); err != nil {
				assert.NotEmpty(t, err.Error())
			}
		}
	}
	assert.False(t, errors.Is(Result{Status: 2}.Err(), io.EOF))
}

func FuzzSense(f *testing.F) {
	f.Add(fixedSense(5, 0x24, 0))
	f.Add([]byte{0x72, 2, 4, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for n := range b {
			key, _, _ := parseSense(b[:n])
			require.Less(t, key, uint8(16))
			require.NotEmpty(t, (Result{Status: 2, Sense: b[:n]}).Err().Error())
		}
	})
}
