package isertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/goiser/goiser/backstore/stamp"
)

const (
	sector   = stamp.SectorSize // bytes
	offGen   = 24               // of the generation in a stamped sector
	forever  = math.MaxInt64
	initial  = 0 // the generation of what was never written: zeros
	noWriter = -1
)

// A Version is one write, and what each of its sectors may hold since. Its times are counts of the model's events.
//
//	began ── placed ── settled
//
// It was in place at the latest at placed: acknowledged, or seen by a read. From settled on it can no longer be put in
// place: it was acknowledged, or its session has been replaced by another. What was given up may land until then.
type Version struct {
	first, count           uint64 // sectors
	began, placed, settled int64
	session                int
	generation             uint64
	acknowledged           bool
}

// A Model knows of every sector which versions a read may return. Sectors are the unit: they are moved in one piece,
// because no path MTU here is smaller and no packet is cut within one.
type Model struct {
	seed uint64

	mu       sync.Mutex // guards what follows
	now      int64
	versions []*Version   // by generation
	sectors  [][]*Version // written, or perhaps, in the order in which the writes began
	checker  stamp.Checker
	zeros    [sector]byte
	checked  int // sectors
}

// NewModel makes the model of a disk of zeros. Its stamps are those of seed.
func NewModel(seed uint64, sectors int) *Model {
	return &Model{seed: seed, versions: []*Version{{session: noWriter}}, sectors: make([][]*Version, sectors)}
}

func (m *Model) tickLocked() int64 { m.now++; return m.now }

// Write begins a write and fills p with what it writes.
func (m *Model) Write(session int, off int64, p []byte) *Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &Version{
		first: uint64(off) / sector, count: uint64(len(p)) / sector, began: m.tickLocked(), placed: forever, settled: forever, session: session,
		generation: uint64(len(m.versions)),
	}
	m.versions = append(m.versions, v)
	for s := v.first; s < v.first+v.count; s++ {
		m.sectors[s] = append(m.sectors[s], v)
	}
	stamp.Fill(p, stamp.ID{Seed: m.seed, Sector: v.first, Generation: v.generation})
	return v
}

// Acknowledge ends a write that was answered GOOD.
func (m *Model) Acknowledge(v *Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.tickLocked()
	v.placed, v.settled, v.acknowledged = min(v.placed, now), now, true
}

// Settle: whatever a session has left behind can no longer be put in place, because its successor has logged in (RFC
// 7143, 6.3.5: reinstatement ends the old session's tasks first).
func (m *Model) Settle(session int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.tickLocked()
	for _, v := range m.versions {
		if v.session == session && v.settled == forever {
			v.settled = now
		}
	}
}

// Read begins a read.
func (m *Model) Read() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tickLocked()
}

// Check ends a read that was answered GOOD: each sector holds a version that was possible while it ran.
func (m *Model) Check(began, off int64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.tickLocked()
	m.checked += len(p) / sector
	for s := uint64(off) / sector; len(p) >= sector; p, s = p[sector:], s+1 {
		v, err := m.identifyLocked(s, p[:sector])
		if err != nil {
			return err
		}
		for _, w := range m.sectors[s] {
			if w.placed < began && w.began > v.settled {
				return fmt.Errorf("sector %d holds %v, which %v has replaced (the read began at %d)", s, v, w, began)
			}
		}
		v.placed = min(v.placed, now)
	}
	return nil
}

// identifyLocked finds the version that a sector's bytes are of.
func (m *Model) identifyLocked(s uint64, b []byte) (*Version, error) {
	if bytes.Equal(b, m.zeros[:]) {
		return m.versions[initial], nil
	}
	g := binary.LittleEndian.Uint64(b[offGen:])
	known := g != initial && g < uint64(len(m.versions))
	if !known {
		g = m.likelyLocked(s)
	}
	if wrong := m.checker.Check(b, stamp.ID{Seed: m.seed, Sector: s, Generation: g}); wrong != nil {
		return nil, fmt.Errorf("%v", wrong)
	}
	v := m.versions[g]
	if !known || s-v.first >= v.count {
		return nil, fmt.Errorf("sector %d holds %v, which was not written there", s, v)
	}
	return v, nil
}

// likelyLocked is the generation to compare garbage with.
func (m *Model) likelyLocked(s uint64) uint64 {
	if all := m.sectors[s]; len(all) > 0 {
		return all[len(all)-1].generation
	}
	return initial
}

// String says what is known of a write.
func (v *Version) String() string {
	switch {
	case v.generation == initial:
		return "zeros from before the first write"
	case v.acknowledged:
		return fmt.Sprintf("write %d (began at %d, acknowledged at %d)", v.generation, v.began, v.settled)
	case v.placed < forever:
		return fmt.Sprintf("write %d (began at %d, not acknowledged, but seen at %d)", v.generation, v.began, v.placed)
	}
	return fmt.Sprintf("write %d (began at %d, not acknowledged)", v.generation, v.began)
}

// Checked is how many sectors were checked.
func (m *Model) Checked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checked
}
