package scsi

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

// memory is a store in Go's heap that can be told what to say of itself and to fail.
type memory struct {
	mu      sync.RWMutex
	b       []byte
	info    backstore.Info
	err     error
	flushes int
	fua     int
}

func newMemory(size int) *memory {
	return &memory{b: make([]byte, size), info: backstore.Info{SizeBytes: int64(size), BlockSize: 512, NeverBlocks: true}}
}

func (m *memory) ReadAt(bufs [][]byte, off int64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.err != nil {
		return m.err
	}
	for _, b := range bufs {
		off += int64(copy(b, m.b[off:]))
	}
	return nil
}

func (m *memory) WriteAt(bufs [][]byte, off int64, fua bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if fua {
		m.fua++
	}
	for _, b := range bufs {
		off += int64(copy(m.b[off:], b))
	}
	return nil
}

func (m *memory) Flush() error         { m.flushes++; return m.err }
func (m *memory) Info() backstore.Info { return m.info }
func (m *memory) Close() error         { return nil }

// mappable is a memory whose reads can be mapped.
type mappable struct{ *memory }

func (m mappable) Map(off int64, n int) []byte { return m.b[off : off+int64(n) : off+int64(n)] }
func (m mappable) Memory() []byte              { return m.b }

// lunAt is the 8-byte LUN of a unit.
func lunAt(n int) uint64 { return Address(n) }

// bench is a device with one unit and a nexus that has seen its power on.
type bench struct {
	t     testing.TB
	d     *Device
	lu    *LogicalUnit
	nexus *Nexus
}

func newBench(t testing.TB, s backstore.Store) *bench { return benchOf(t, s, LUConfig{ID: "unit 0"}) }

// benchOf is newBench with a configuration of the unit.
func benchOf(t testing.TB, s backstore.Store, c LUConfig) *bench {
	b := &bench{t: t, d: NewDevice(DeviceConfig{Name: "iqn.2026-01.test:x", MaxTransfer: 64 << 10})}
	var err error
	b.lu, err = b.d.Add(0, s, c)
	require.NoError(t, err)
	b.nexus = b.d.Attach(NexusConfig{Initiator: "iqn.2026-01.test:i,i,0x0", RelativePort: 1})
	require.Equal(t, "6/29/00", b.run(0, []byte{0, 0, 0, 0, 0, 0}, 0, nil).sense())
	return b
}

// result is an answered task and the data that came with it.
type result struct {
	Task
	data []byte
}

// sense is the condition in short: "5/24/00", or empty.
func (r *result) sense() string {
	s := r.Sense()
	if s == nil {
		return ""
	}
	if s[0] == 0x72 { // descriptor format
		return fmt.Sprintf("%x/%02x/%02x", s[1]&15, s[2], s[3])
	}
	return fmt.Sprintf("%x/%02x/%02x", s[2]&15, s[12], s[13])
}

// run does what a transport does: out is Data-Out (write), else edtl is the room for Data-In.
func (b *bench) run(lun uint64, cdb []byte, edtl int, out []byte) *result {
	r := &result{Task: Task{Nexus: b.nexus, LUN: lun, CDB: cdb}}
	switch {
	case out != nil:
		r.Write, r.EDTL = true, uint32(len(out))
	case edtl > 0:
		r.Read, r.EDTL = true, uint32(edtl)
	}
	b.do(r, out)
	return r
}

func (b *bench) do(r *result, out []byte) {
	b.d.Prepare(&r.Task)
	if !r.Done {
		if r.OutLen > 0 {
			half := r.OutLen / 2
			r.Out = [][]byte{out[:half], out[half:r.OutLen]}
		}
		if !r.Mapped && r.InLen > 0 {
			room := make([]byte, r.InLen)
			r.In = [][]byte{room[:r.InLen/2], room[r.InLen/2:]}
		}
		b.d.Execute(&r.Task)
		if r.NeedsRoom {
			require.False(b.t, r.Mapped || r.Done)
			r.In = [][]byte{make([]byte, r.InLen)}
			b.d.Execute(&r.Task)
			require.False(b.t, r.NeedsRoom)
		}
	}
	for _, p := range r.In {
		r.data = append(r.data, p...)
	}
	r.data = r.data[:r.InData]
	b.d.Release(&r.Task)
}

// bare is a mappable store without a lock, as a RAM disk is: who lets two commands at the same bytes, one
// of them writing, is told so by the race detector.
type bare struct {
	b    []byte
	info backstore.Info
}

func newBare(size int) *bare {
	return &bare{make([]byte, size), backstore.Info{
		SizeBytes: int64(size), BlockSize: 512, NeverBlocks: true, Volatile: true, AtomicBytes: 1 << 20,
	}}
}

func (s *bare) ReadAt(bufs [][]byte, off int64) error {
	for _, b := range bufs {
		off += int64(copy(b, s.b[off:]))
	}
	return nil
}

func (s *bare) WriteAt(bufs [][]byte, off int64, _ bool) error {
	for _, b := range bufs {
		off += int64(copy(s.b[off:], b))
	}
	return nil
}

func (s *bare) Map(off int64, n int) []byte { return s.b[off : off+int64(n) : off+int64(n)] }
func (s *bare) Memory() []byte              { return s.b }
func (s *bare) Flush() error                { return nil }
func (s *bare) Info() backstore.Info        { return s.info }
func (s *bare) Close() error                { return nil }

// thin is a memory that gives space back in units of thinUnit bytes, as the contract of optional.go says.
type thin struct {
	*memory
	mapped  []bool // of each unit
	unmaps  int
	zeroing int
}

const thinUnit = 4096

func newThin(size int) *thin {
	m := newMemory(size)
	m.info.Thin, m.info.UnmapGranularity, m.info.Volatile, m.info.AtomicBytes = true, thinUnit, true, 1<<20
	return &thin{memory: m, mapped: make([]bool, (size+thinUnit-1)/thinUnit)}
}

func (s *thin) WriteAt(bufs [][]byte, off int64, fua bool) error {
	if err := s.memory.WriteAt(bufs, off, fua); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := off / thinUnit; at*thinUnit < off+int64(length(bufs)); at++ {
		s.mapped[at] = true
	}
	return nil
}

func (s *thin) Unmap(off, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmaps++
	if s.err != nil {
		return s.err
	}
	clear(s.b[off : off+n])
	for at := (off + thinUnit - 1) / thinUnit; (at+1)*thinUnit <= off+n; at++ {
		s.mapped[at] = false
	}
	return nil
}

func (s *thin) WriteZeroes(off, n int64, unmap, _ bool) error {
	if unmap {
		return s.Unmap(off, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zeroing++
	if s.err != nil {
		return s.err
	}
	clear(s.b[off : off+n])
	for at := off / thinUnit; at*thinUnit < off+n; at++ {
		s.mapped[at] = true
	}
	return nil
}

func (s *thin) Extent(off, n int64) (bool, int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.err != nil {
		return false, 0, s.err
	}
	first, end := s.mapped[off/thinUnit], off
	for end < off+n && s.mapped[end/thinUnit] == first {
		end = (end/thinUnit + 1) * thinUnit
	}
	return first, min(end-off, n), nil
}
