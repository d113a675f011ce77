package backstore

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// A cut knows what a power cut would lose: blocks of 512 bytes that were changed and not flushed since.
type cut struct {
	dirty    []bool
	promised []bool // what the store has said is durable
	off, n   int64  // the request in progress
}

// watch puts the cut between a store and the kernel. A direct write of a part of the device's block writes the rest of it
// back as it was: whether the cut finds that block old or new, the rest is the same.
func (c *cut) watch(s *fileStore) {
	s.sys.pwritev = func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
		n, err := pwritev(fd, iov, off, flags)
		from, to := max(off, c.off), min(off+int64(n), c.off+c.n)
		c.mark(c.dirty, from, to-from, flags&unix.RWF_DSYNC == 0)
		return n, err
	}
	s.sys.fallocate = func(fd int, mode uint32, off, n int64) error {
		c.mark(c.dirty, off, n, true)
		return unix.Fallocate(fd, mode, off, n)
	}
	s.sys.fdatasync = func(fd int) error {
		clear(c.dirty)
		return nil
	}
}

func (c *cut) mark(blocks []bool, off, n int64, v bool) {
	for i := off / 512; i*512 < off+n; i++ {
		blocks[i] = v
	}
}

// TestPowerCut: whatever is done, nothing that the store has called durable would be lost at any moment:
// writes and zeros that were forced, everything completed before a flush, and all there is without a write
// cache.
func TestPowerCut(t *testing.T) {
	const blocks = 2048 // 1 MiB
	for name, opts := range map[string][]string{
		"flush": nil, "fua": {"sync", "fua"}, "dsync": {"sync", "dsync"}, "thick": {"thin", "no"},
		"direct": {"direct", "yes"}, "direct, dsync": {"direct", "yes", "sync", "dsync"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(opts) > 0 && opts[0] == "direct" {
				needDirect(t)
			}
			s := faulty(t, opts...)
			c := &cut{dirty: make([]bool, blocks), promised: make([]bool, blocks)}
			c.watch(s)
			rapid.Check(t, func(t *rapid.T) {
				unit := rapid.SampledFrom([]int64{512, 4096}).Draw(t, "unit")
				off := rapid.Int64Range(0, (1<<20)/unit-1).Draw(t, "at") * unit
				n := rapid.Int64Range(1, min(64, ((1<<20)-off)/unit)).Draw(t, "units") * unit
				fua := rapid.Bool().Draw(t, "fua")
				switch op := rapid.SampledFrom([]string{"write", "zero", "unmap", "flush"}).Draw(t, "op"); op {
				case "flush":
					require.NoError(t, s.Flush())
					c.mark(c.promised, 0, 1<<20, true)
				default:
					c.mark(c.promised, off, n, false) // in progress: old or new
					fua = fua && op != "unmap"
					c.do(t, s, op, off, n, fua)
					c.mark(c.promised, off, n, fua || !s.Info().WriteCache)
				}
				for i := range c.dirty {
					require.False(t, c.dirty[i] && c.promised[i], "block %d would be lost", i)
				}
			})
			require.NoError(t, s.Close())
		})
	}
}

func (c *cut) do(t *rapid.T, s *fileStore, op string, off, n int64, fua bool) {
	c.off, c.n = off, n
	switch op {
	case "write":
		require.NoError(t, s.WriteAt([][]byte{make([]byte, n)}, off, fua))
	case "zero":
		require.NoError(t, s.WriteZeroes(off, n, rapid.Bool().Draw(t, "give back"), fua))
	case "unmap":
		require.NoError(t, s.Unmap(off, n))
	}
}
