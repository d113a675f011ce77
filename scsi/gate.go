package scsi

import "sync"

// The rule of atomicity. COMPARE AND WRITE, ORWRITE and WRITE ATOMIC run alone: while one of them is
// between its first look at the medium and its last write, no other command of the unit reads or writes a
// block of its extent. So every other command finds all of it done or nothing (SBC-3, COMPARE AND WRITE and
// ORWRITE: an uninterrupted series of actions; SBC-4, WRITE ATOMIC).
//
// Who keeps it is the gate: every command that touches blocks enters it before and leaves it after, with
// its extent. Ordinary commands go by the fast way, which is one counter (begun) more and no lock. One
// that wants to be alone closes the fast way for as long as it is there; then
//
//  1. it waits for those that went in by the fast way, of which nobody knows the extents. Whoever comes
//     from now on is listed with its extent, and is not held up yet;
//  2. now it is ready: it waits for what is listed, overlaps it and is inside or came earlier, and what comes
//     later and overlaps it waits for it.
//
// A read that points at the store's memory (Mapped) is inside until the memory has left for the network,
// and no store can be asked to copy what is already on its way. A unit that has been asked to run
// something alone therefore maps no read from then on: they are copied, inside the gate. Reads mapped
// before are waited for in step 1, once in the unit's life, so an initiator that does not take its data
// delays the first atomic command, and no other command, as long as its connection lives.
//
// Nobody waits in a circle. Step 1 waits for commands that wait for nobody: they are at the store, or with
// a connection that has only to send them; and no loop of a connection waits at a gate for a command that is
// not ready yet. In step 2 all wait for commands that are inside, or for earlier ones; while a command is
// ready, nobody is inside by the fast way, so that what a loop waits for does not wait for that loop. It follows that nobody may enter a gate while inside one, be it another unit's.
//
// Commands that want to be alone may wait, so they are marked MayBlock. An ordinary command on a
// connection's loop, which means that its store does not block, waits for no more than a ready command's
// comparing and copying of memory, and takes gate.mu only to look at the list.
type gate struct {
	mu     sync.Mutex
	change sync.Cond // on mu: somebody has left, become ready, or ended
	first  *pass     // the list, in the order of arrival
	last   *pass
	alone  int // of the list, how many want to be alone
}

// A pass is a command's place in the list.
type pass struct {
	lba, end   uint64 // blocks [lba, end)
	alone      bool
	ready      bool // alone, and nobody is left who came by the fast way
	inside     bool
	next, prev *pass
	listed     bool
}

// unit states, bits of LogicalUnit.state. All but stateCopies make commands leave the fast way.
const (
	stateClosed     = 1 << iota // somebody wants to be alone, or is
	stateSanitizing             // see sanitize.go: block commands are refused
	stateCopies                 // reads are not mapped
)

// stateSlow is what closes the fast way. Those who end must then wake those who wait.
const stateSlow = stateClosed | stateSanitizing

// begin counts a command into the gate by the fast way, and reports whether none of the barred bits is set
// in the unit's state; if one is, retreat must take it back. It was set before, and this command sees it, or
// will be, and the one who sets it sees this command.
func (lu *LogicalUnit) begin(barred uint32) bool {
	lu.begun.Add(1)
	return lu.state.Load()&barred == 0
}

// retreat takes back what begin has counted.
func (lu *LogicalUnit) retreat() {
	lu.begun.Add(^uint64(0))
	if lu.state.Load()&stateSlow != 0 {
		lu.wake()
	}
}

// fast is how many are inside by the fast way: never too few, since what has ended is counted first.
func (lu *LogicalUnit) fast() uint64 {
	done := lu.done.Load()
	return lu.begun.Load() - done
}

// wake lets those who wait look again.
func (lu *LogicalUnit) wake() {
	lu.gate.mu.Lock()
	lu.gate.change.Broadcast()
	lu.gate.mu.Unlock()
}

// enter lists p and returns when it is inside. It fails if the unit refuses block commands.
func (lu *LogicalUnit) enter(p *pass) error {
	g := &lu.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := lu.sanitize.errorLocked(); err != nil {
		return err
	}
	g.enterLocked(lu, p)
	return nil
}

func (g *gate) enterLocked(lu *LogicalUnit, p *pass) {
	p.prev, p.next, p.listed = g.last, nil, true
	if g.last != nil {
		g.last.next = p
	} else {
		g.first = p
	}
	g.last = p
	if p.alone {
		g.alone++
		lu.state.Or(stateClosed | stateCopies)
		for lu.fast() != 0 {
			g.change.Wait()
		}
		p.ready = true
	}
	for !g.mayEnterLocked(p) {
		g.change.Wait()
	}
	p.inside = true
}

func (g *gate) mayEnterLocked(p *pass) bool {
	earlier := true
	for q := g.first; q != nil; q = q.next {
		switch {
		case q == p:
			earlier = false
		case q.end <= p.lba || p.end <= q.lba, !q.alone && !p.alone:
		case q.inside, earlier && (p.alone || q.ready):
			return false
		}
	}
	return true
}

// leave takes p out of the list.
func (lu *LogicalUnit) leave(p *pass) {
	g := &lu.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		g.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		g.last = p.prev
	}
	if p.alone {
		if g.alone--; g.alone == 0 {
			lu.state.And(^uint32(stateClosed))
		}
	}
	*p = pass{}
	g.change.Broadcast()
}

// enter lets a task into its unit's gate. It may find that a Mapped task must be copied after all
// (Task.NeedsRoom).
func (t *Task) enter() error {
	t.NeedsRoom = false
	barred := uint32(stateSlow)
	if t.Mapped {
		barred |= stateCopies
	}
	// A look before counting: while the gate is closed its count must only fall.
	if lu := t.lu; t.op.flags&runsAlone == 0 && lu.state.Load()&barred == 0 {
		if lu.begin(barred) {
			t.begun = true
			return nil
		}
		lu.retreat()
	}
	return t.enterListed()
}

// enterListed lets it in by the list, or has a Mapped one come again with room for a copy.
func (t *Task) enterListed() error {
	if t.NeedsRoom = t.Mapped; t.NeedsRoom {
		t.Mapped, t.In, t.mapBuf[0] = false, nil, nil
		return nil
	}
	t.pass = pass{lba: t.lba, end: t.lba + t.blocks, alone: t.op.flags&runsAlone != 0}
	return t.lu.enter(&t.pass)
}

// leaveGate ends a task's time inside, if it has been. Whoever waits for that has set a bit of state before it looks
// at the counts, and this counts before it looks at state, so one of the two sees the other.
func (t *Task) leaveGate() {
	lu := t.lu
	switch {
	case t.begun:
		t.begun, t.counted = false, true
		lu.done.Add(1)
		if lu.state.Load()&stateSlow != 0 {
			lu.wake()
		}
	case t.pass.listed:
		lu.leave(&t.pass)
	}
}

// through does a piece of a longer work inside the gate: for commands that touch blocks in steps, so that
// nobody waits for all of them. do must not enter a gate.
func (lu *LogicalUnit) through(lba, blocks uint64, do func() error) error {
	if lu.state.Load()&stateSlow == 0 {
		if lu.begin(stateSlow) {
			defer lu.retreat()
			return do()
		}
		lu.retreat()
	}
	p := pass{lba: lba, end: lba + blocks}
	if err := lu.enter(&p); err != nil {
		return err
	}
	defer lu.leave(&p)
	return do()
}
