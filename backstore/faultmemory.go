package backstore

// A sectorMemory keeps what some sectors (of MinBlock bytes) held before, as many as its limit. When it is full the
// sector that came first goes. It is not for concurrent use.
type sectorMemory struct {
	limit int
	old   map[int64]*[MinBlock]byte // by sector number
	order []int64                   // as they came; may name sectors that are gone
}

func newSectorMemory(limitBytes int64) *sectorMemory {
	return &sectorMemory{limit: int(limitBytes / MinBlock), old: map[int64]*[MinBlock]byte{}}
}

// keep remembers p as what the sector held. What is remembered already stays, unless newest.
func (m *sectorMemory) keep(sector int64, p []byte, newest bool) {
	if b := m.old[sector]; b != nil {
		if newest {
			copy(b[:], p)
		}
		return
	}
	for len(m.old) >= m.limit {
		delete(m.old, m.order[0])
		m.order = m.order[1:]
	}
	b := new([MinBlock]byte)
	copy(b[:], p)
	m.old[sector] = b
	m.order = append(m.order, sector)
	if len(m.order) > 2*m.limit {
		m.compact()
	}
}

// compact drops names of sectors that are gone.
func (m *sectorMemory) compact() {
	var order []int64
	listed := make(map[int64]bool, len(m.old))
	for _, s := range m.order {
		if m.old[s] != nil && !listed[s] {
			listed[s] = true
			order = append(order, s)
		}
	}
	m.order = order
}

// forget drops the sectors from one to another, which is not among them.
func (m *sectorMemory) forget(from, to int64) {
	if to-from < int64(len(m.old)) {
		for s := from; s < to; s++ {
			delete(m.old, s)
		}
		return
	}
	for s := range m.old {
		if from <= s && s < to {
			delete(m.old, s)
		}
	}
}

func (m *sectorMemory) clear() {
	clear(m.old)
	m.order = nil
}

// knows reports whether a sector that [off, off+n) touches is remembered.
func (m *sectorMemory) knows(off, n int64) bool {
	from, to := sectorsOf(off, n)
	if to-from > int64(len(m.old)) {
		for s := range m.old {
			if from <= s && s < to {
				return true
			}
		}
		return false
	}
	for s := from; s < to; s++ {
		if m.old[s] != nil {
			return true
		}
	}
	return false
}

// sectorsOf are the sectors that n bytes at off touch, [from, to).
func sectorsOf(off, n int64) (from, to int64) {
	return off / MinBlock, (off + n + MinBlock - 1) / MinBlock
}

// remember keeps what [off, off+n) holds before it is written: for the simulated power cut, and for stale reads
// where there are rules for them. It is called with f.mu held, which is not given up until it is written.
func (f *FaultStore) remember(rules *faultRules, off, n int64) error {
	from, to := sectorsOf(off, n)
	undo := f.undo != nil && n <= f.cacheBytes
	if f.undo != nil && !undo {
		f.undo.forget(from, to) // more than the cache takes goes through it
	}
	stale := rules.stale(off, n)
	if !undo && !stale {
		return nil
	}
	step := int64(staleBytes / MinBlock)
	for ; from < to; from += step {
		p := make([]byte, min(step, to-from)*MinBlock)
		if err := f.below.ReadAt([][]byte{p}, from*MinBlock); err != nil {
			return err
		}
		for s := from; len(p) > 0; s, p = s+1, p[MinBlock:] {
			if undo {
				f.undo.keep(s, p, false)
			}
			if stale {
				f.old.keep(s, p, true)
			}
		}
	}
	return nil
}

// PowerCut is as if the power failed and came back: what was written and not made durable since is as it was
// before, as far as the store remembers (its option cache). A lost flush makes nothing durable. It says how many
// bytes were lost. Requests in progress count before or after.
func (f *FaultStore) PowerCut() (lostBytes int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed.Load() {
		return 0, f.closedError("power cut")
	}
	if f.undo == nil {
		return 0, nil
	}
	for s, old := range f.undo.old {
		if err := f.below.WriteAt([][]byte{old[:]}, s*MinBlock, false); err != nil {
			return lostBytes, err
		}
		lostBytes += MinBlock
	}
	f.undo.clear()
	f.old.clear()
	return lostBytes, f.below.Flush()
}
