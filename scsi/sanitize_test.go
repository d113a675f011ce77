package scsi

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sanitize is the CDB of a service action, with flags, and a parameter list of n bytes.
func sanitize(action byte, n int) []byte { return cdb10(0x48, action, 0, uint16(n)) }

const (
	overwrite, blockErase, cryptoErase, exitFailure = 0x01, 0x02, 0x03, 0x1f
	immed, ause                                     = 0x80, 0x20
)

// waitSanitized returns when no sanitize operation goes on.
func waitSanitized(lu *LogicalUnit) {
	lu.gate.mu.Lock()
	defer lu.gate.mu.Unlock()
	for lu.sanitize.phase == sanitizeRunning {
		lu.gate.change.Wait()
	}
}

func TestSanitizeOverwrite(t *testing.T) {
	long := bytes.Repeat([]byte("abcd"), 128)
	for _, c := range []struct {
		name   string
		flags  byte
		list   []byte
		sense  string
		result []byte // of every block
	}{
		{"a block", 0, join([]byte{1, 0, 2, 0}, long), "", long},
		{"a byte, AUSE", ause, []byte{1, 0, 0, 1, 'x'}, "", blocksOf('x', 1)},
		{"7 bytes, 3 times", 0, []byte("\x03\x00\x00\x071234567"), "", bytes.Repeat([]byte("1234567"), 74)[:512]},
		{"inverted and back", 0, []byte{0x82, 0, 0, 1, 'x'}, "", blocksOf('x', 1)},
		{"once, INVERT", 0, []byte{0x81, 0, 0, 1, 'x'}, "", blocksOf('x', 1)},
		{"more list than pattern", 0, []byte{1, 0, 0, 1, 'x', 'y'}, "", blocksOf('x', 1)},
		{"no list", 0, nil, "5/24/00", nil},
		{"no pattern", 0, []byte{1, 0, 0, 0}, "5/24/00", nil},
		{"more than a block", 0, append([]byte{1, 0, 2, 0}, make([]byte, 513)...), "5/24/00", nil},
		{"pattern of 0", 0, []byte{1, 0, 0, 0, 'x'}, "5/26/00", nil},
		{"pattern longer than the list", 0, []byte{1, 0, 0, 2, 'x'}, "5/26/00", nil},
		{"pattern of 513", 0, join([]byte{1, 0, 2, 1}, long), "5/26/00", nil},
		{"no passes", 0, []byte{0x80, 0, 0, 1, 'x'}, "5/26/00", nil},
		{"TEST", 0, []byte{0x21, 0, 0, 1, 'x'}, "5/26/00", nil},
		{"ZNR", 0x40, []byte{1, 0, 0, 1, 'x'}, "5/24/00", nil},
	} {
		for _, how := range []byte{0, immed} {
			t.Run(c.name, func(t *testing.T) {
				s := newThin(1000 * 512)
				copy(s.b, blocksOf('d', 1000))
				b := newBench(t, s)
				r := b.run(0, sanitize(overwrite|c.flags|how, len(c.list)), 0, c.list)
				assert.Equal(t, c.sense, r.sense())
				waitSanitized(b.lu)
				want := blocksOf('d', 1000)
				if c.sense == "" {
					want = bytes.Repeat(c.result, 1000)
				}
				assert.True(t, bytes.Equal(want, s.b), "the medium")
				assert.Equal(t, min(len(c.result), 1), s.flushes)
				assert.Equal(t, Good, b.run(0, testReady, 0, nil).Status)
			})
		}
	}
}

// INVERT: passes take turns, and the last one is as given (SBC-3, 5.24.2.2).
func TestSanitizeInverts(t *testing.T) {
	for count, want := range map[byte]string{1: "x", 2: "\x87x", 3: "x\x87x", 4: "\x87x\x87x"} {
		s := &written{memory: newMemory(4096)}
		s.info.Volatile = true
		b := newBench(t, s)
		require.Equal(t, Good, b.run(0, sanitize(overwrite, 5), 0, []byte{0x80 | count, 0, 0, 1, 'x'}).Status)
		assert.Equal(t, want, string(s.firsts))
	}
}

// written remembers the first byte of each write, and does stop, if there is one, before it.
type written struct {
	*memory
	firsts []byte
	stop   func()
}

func (w *written) WriteAt(bufs [][]byte, off int64, fua bool) error {
	w.firsts = append(w.firsts, bufs[0][0])
	if w.stop != nil {
		w.stop()
	}
	return w.memory.WriteAt(bufs, off, fua)
}

func TestSanitizeBlockErase(t *testing.T) {
	s := newThin(10 * thinUnit)
	require.NoError(t, s.WriteAt([][]byte{blocksOf('d', 16)}, thinUnit, false))
	b := newBench(t, s)
	assert.Equal(t, "5/24/00", b.run(0, sanitize(blockErase, 8), 0, make([]byte, 8)).sense())
	assert.Equal(t, "5/24/00", b.run(0, sanitize(exitFailure, 8), 0, make([]byte, 8)).sense())
	assert.Equal(t, "5/24/00", b.run(0, sanitize(cryptoErase, 0), 0, nil).sense())
	assert.Equal(t, blocksOf('d', 16), s.b[thinUnit:3*thinUnit])
	r := b.run(0, sanitize(blockErase, 0), 0, nil)
	require.Equal(t, Good, r.Status)
	assert.True(t, r.MayBlock)
	assert.Equal(t, make([]byte, 10*thinUnit), s.b)
	assert.Equal(t, golden(t, `00000014 00000000 0000000000000000 00000050 01 000000`), b.run(0, lbaStatus(0, 255), 255, nil).data)
	assert.EqualValues(t, 0x40, inquiry(b, 0, 1, 0xb1).data[7], "WABEREQ")
	assert.Equal(t, Good, b.run(0, sanitize(exitFailure, 0), 0, nil).Status, "nothing has failed")
}

// Where old copies of a block may lie about, nothing is promised.
func TestSanitizeIsOfferedWhereItCanBeKept(t *testing.T) {
	for _, c := range []struct {
		volatile, thin bool
		sense          map[byte]string
	}{
		{false, true, map[byte]string{overwrite: "5/20/00", blockErase: "5/20/00", exitFailure: "5/20/00", 0: "5/24/00"}},
		{true, false, map[byte]string{overwrite: "5/24/00", blockErase: "5/24/00", exitFailure: "", cryptoErase: "5/24/00"}},
	} {
		s := newThin(4096)
		s.info.Volatile, s.info.Thin = c.volatile, c.thin
		b := newBench(t, s)
		for action, want := range c.sense {
			assert.Equal(t, want, b.run(0, sanitize(action, 0), 0, nil).sense(), "%+v %x", c, action)
		}
		assert.Equal(t, c.volatile, reportOpcodes(b, 2, 0x48, overwrite).data[1] == 3)
		assert.False(t, reportOpcodes(b, 2, 0x48, blockErase).data[1] == 3)
		assert.Zero(t, inquiry(b, 0, 1, 0xb1).data[7])
	}
	s := newThin(4096)
	s.info.ReadOnly = true
	assert.Equal(t, "7/27/00", newBench(t, s).run(0, sanitize(blockErase, 0), 0, nil).sense())
}

// While it goes on, only the commands of SBC-3, 4.11, are answered; progress is told; resets and the end of
// the session change nothing; and a write that was under way before does not come after.
func TestSanitizeRefusesOtherCommandsWhileItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &written{memory: newMemory(2 * maxWriteSameBytes)}
		w.info.Volatile = true
		b := newBench(t, w)
		o := b.another()
		prepared := Task{Nexus: o.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true}
		b.d.Prepare(&prepared)
		prepared.Out = [][]byte{blocksOf('w', 1)}

		steps, writes := make(chan bool), atomic.Int64{}
		w.stop = func() {
			if writes.Add(1) == 16 { // of 32 writes of 1 MiB
				<-steps
			}
		}
		require.Equal(t, Good, b.run(0, sanitize(overwrite|immed, 5), 0, []byte{1, 0, 0, 1, 'x'}).Status)
		synctest.Wait()
		b.d.Detach(b.nexus)
		b.d.ResetLU(0, nil)
		for _, cdb := range [][]byte{
			testReady, cdb10(0x28, 0, 0, 1), cdb10(0x2a, 0, 0, 1), cdb10(0x25, 0, 0, 0),
			{0x1b, 0, 0, 0, 1, 0},
			{0x1a, 0, 0x3f, 0, 255, 0},
			sanitize(overwrite, 5), sanitize(exitFailure, 0), cdb10(0x35, 0, 0, 0),
		} {
			n := 512
			if cdb[0] == 0x48 {
				n = 5
			}
			r := o.run(0, cdb, 0, make([]byte, n))
			if r.sense() == "6/29/03" || r.sense() == "6/29/02" {
				r = o.run(0, cdb, 0, make([]byte, n))
			}
			assert.Equal(t, "2/04/1b", r.sense(), "% x", cdb)
			assert.EqualValues(t, 0x80, r.Sense()[15], "SKSV, a progress indication")
		}
		for _, cdb := range [][]byte{{0x12, 0, 0, 0, 96, 0}, {0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}, {0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0}} {
			assert.Equal(t, Good, o.run(0, cdb, 96, nil).Status, "% x", cdb)
		}
		sense := o.run(0, []byte{3, 0, 0, 0, 18, 0}, 18, nil).data
		assert.Equal(t, []byte{2, 4, 0x1b}, []byte{sense[2], sense[12], sense[13]})
		b.d.Execute(&prepared)
		assert.Equal(t, "2/04/1b", (&result{Task: prepared}).sense())
		b.d.Release(&prepared)
		assert.ErrorIs(t, b.lu.Exclusive(context.Background(), nil), errSanitizeOpen, "a resize, for example")
		ordered := &result{Task: Task{Nexus: o.nexus, CDB: testReady, Attr: Ordered}}
		o.do(ordered, nil)
		assert.Equal(t, "2/04/1b", ordered.sense(), "an ORDERED command does not wait")

		close(steps)
		waitSanitized(b.lu)
		assert.Equal(t, Good, o.run(0, testReady, 0, nil).Status)
		assert.True(t, bytes.Equal(bytes.Repeat([]byte{'x'}, len(w.b)), w.b), "the write that came too late")
	})
}

// It waits for a write that is at the store.
func TestSanitizeWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &written{memory: newMemory(64 * 512)}
		w.info.Volatile = true
		b := newBench(t, w)
		held := make(chan bool)
		var once atomic.Bool
		w.stop = func() {
			if !once.Swap(true) {
				<-held
			}
		}
		o := b.another()
		go o.run(0, cdb10(0x2a, 0, 0, 1), 0, blocksOf('w', 1))
		synctest.Wait()
		go o.run(0, sanitize(overwrite, 5), 0, []byte{1, 0, 0, 1, 'x'})
		synctest.Wait()
		assert.Equal(t, "w", string(w.firsts))
		close(held)
		synctest.Wait()
		assert.Equal(t, blocksOf('x', 64), w.b)
	})
}

// SBC-3, 4.11.3 and 5.24.5: a failure is left by EXIT FAILURE MODE if AUSE was set, or by success.
func TestSanitizeFailure(t *testing.T) {
	s := newThin(4 * thinUnit)
	b := newBench(t, s)
	list := []byte{1, 0, 0, 1, 'x'}
	fail := func(flags byte) {
		s.err = errors.New("bad memory")
		assert.Equal(t, "3/31/03", b.run(0, sanitize(overwrite|flags, 5), 0, list).sense())
		s.err = nil
		assert.Equal(t, "3/31/03", b.run(0, testReady, 0, nil).sense())
		assert.Equal(t, "3/31/03", b.run(0, cdb10(0x28, 0, 0, 1), 512, nil).sense())
		assert.Equal(t, Good, inquiry(b, 0, 0, 0).Status)
		sense := b.run(0, []byte{3, 0, 0, 0, 18, 0}, 18, nil).data
		assert.Equal(t, []byte{3, 0x31, 3}, []byte{sense[2], sense[12], sense[13]})
		assert.ErrorIs(t, b.lu.Exclusive(context.Background(), nil), errSanitizeOpen, "what is left must not get out of its reach")
	}
	fail(ause)
	assert.Equal(t, Good, b.run(0, sanitize(exitFailure, 0), 0, nil).Status)
	assert.Equal(t, Good, b.run(0, testReady, 0, nil).Status)

	fail(0)
	assert.Equal(t, "5/24/00", b.run(0, sanitize(exitFailure, 0), 0, nil).sense())
	assert.Equal(t, "5/24/00", b.run(0, sanitize(overwrite|ause, 5), 0, list).sense(), "a way round")
	assert.Equal(t, "3/31/03", b.run(0, testReady, 0, nil).sense())
	assert.Equal(t, Good, b.run(0, sanitize(blockErase, 0), 0, nil).Status)
	assert.Equal(t, Good, b.run(0, testReady, 0, nil).Status)
}

// Removing the unit ends the operation, and waits for it.
func TestSanitizeEndsWithTheUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &written{memory: newMemory(2 * maxWriteSameBytes)}
		w.info.Volatile = true
		b := newBench(t, w)
		held := make(chan bool)
		w.stop = func() { <-held }
		require.Equal(t, Good, b.run(0, sanitize(overwrite|immed, 5), 0, []byte{1, 0, 0, 1, 'x'}).Status)
		synctest.Wait()
		removed := make(chan error, 1)
		go func() { removed <- b.d.Remove(0) }()
		synctest.Wait()
		require.Empty(t, removed)
		close(held)
		require.NoError(t, <-removed)
		assert.Len(t, w.firsts, maxWriteSameBytes/patternWrite, "no step more")
	})
}
