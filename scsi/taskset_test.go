package scsi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// held counts the tasks that have started and not ended, and other users of the unit.
func (lu *LogicalUnit) held() int { return lu.set.users() }

func (s *taskSet) users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(s.state.Load()&setCount) + s.heads
	if s.ordered {
		n++
	}
	return n
}

// A naiveSet is SAM-5, 8.6, word by word: tasks in order of arrival.
type naiveSet []*naiveTask

type naiveTask struct {
	id      int
	attr    Attr
	started bool
}

// mayStart reads the rules of 8.6.2 to 8.6.4.
func (s naiveSet) mayStart(i int) bool {
	if s[i].attr == HeadOfQueue {
		return true
	}
	for j, other := range s {
		switch {
		case other.attr == HeadOfQueue:
			return false
		case j < i && (s[i].attr == Ordered || other.attr == Ordered):
			return false
		}
	}
	return true
}

// start starts what may start, until nothing more does.
func (s naiveSet) start() (ids []int) {
	for again := true; again; {
		again = false
		for i, t := range s {
			if !t.started && s.mayStart(i) {
				t.started, again = true, true
				ids = append(ids, t.id)
			}
		}
	}
	return ids
}

func (s naiveSet) without(i int) naiveSet { return append(append(naiveSet{}, s[:i]...), s[i+1:]...) }

// TestTaskSetIsTheModel lets tasks of all attributes come, end and be withdrawn at random, and holds what
// starts, and when, against the naive model.
func TestTaskSetIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			set     taskSet
			naive   naiveSet
			started []int
			tasks   = map[int]*Task{}
			next    int
		)
		set.open()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			started = started[:0]
			if len(naive) == 0 || rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				id := next
				next++
				k := &Task{Attr: rapid.SampledFrom([]Attr{Untagged, Simple, Simple, Ordered, HeadOfQueue}).Draw(t, "attr")}
				k.Ready = func() { started = append(started, id) }
				tasks[id] = k
				naive = append(naive, &naiveTask{id: id, attr: k.Attr})
				ok, in := set.enter(k)
				require.True(t, in)
				if ok {
					started = append(started, id)
				}
			} else {
				i := rapid.IntRange(0, len(naive)-1).Draw(t, "which")
				k := naive[i]
				naive = naive.without(i)
				if k.started {
					require.False(t, set.withdraw(tasks[k.id]))
					set.leave(tasks[k.id])
				} else {
					require.True(t, set.withdraw(tasks[k.id]))
				}
			}
			require.ElementsMatch(t, naive.start(), started)
		}
		for len(naive) > 0 {
			i := 0
			for !naive[i].started {
				i++ // panics if nothing has started: a deadlock
			}
			started = started[:0]
			set.leave(tasks[naive[i].id])
			naive = naive.without(i)
			require.ElementsMatch(t, naive.start(), started)
		}
		require.Zero(t, set.state.Load(), "no lock for the next task")
		require.Zero(t, set.users())
	})
}

// TestTaskSetUnderLoad is the rule where many come and go at once: an ORDERED task runs alone, but for HEAD OF
// QUEUE ones; nobody is forgotten; what is withdrawn never runs.
func TestTaskSetUnderLoad(t *testing.T) {
	var (
		set             taskSet
		simple, ordered atomic.Int32
		exclusives      atomic.Int32
		wg              sync.WaitGroup
	)
	set.open()
	lu := &LogicalUnit{}
	lu.set.open()
	work := func(attr Attr) {
		switch attr {
		case HeadOfQueue:
		case Ordered:
			assert.EqualValues(t, 1, ordered.Add(1))
			assert.Zero(t, simple.Load())
			runtime.Gosched()
			assert.Zero(t, simple.Load())
			ordered.Add(-1)
		default:
			simple.Add(1)
			assert.Zero(t, ordered.Load())
			runtime.Gosched()
			assert.Zero(t, ordered.Load())
			simple.Add(-1)
		}
		assert.Zero(t, exclusives.Load())
	}
	for g := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			ready := make(chan struct{}, 1)
			k := &Task{Ready: func() { ready <- struct{}{} }}
			for range 1000 {
				k.Attr = []Attr{Simple, Simple, Simple, Simple, Untagged, Ordered, HeadOfQueue}[rng.IntN(7)]
				started, ok := lu.set.enter(k)
				if !ok {
					t.Error("not removed")
					return
				}
				if !started {
					if rng.IntN(8) == 0 && lu.set.withdraw(k) {
						continue
					}
					<-ready
				}
				work(k.Attr)
				lu.set.leave(k)
			}
		})
	}
	wg.Go(func() { // another user of the unit
		for range 1000 {
			if lu.hold() {
				assert.Zero(t, exclusives.Load())
				runtime.Gosched()
				assert.Zero(t, exclusives.Load())
				lu.release()
			}
		}
	})
	wg.Go(func() {
		for range 50 {
			assert.NoError(t, lu.Exclusive(context.Background(), func() error {
				exclusives.Add(1)
				assert.Zero(t, simple.Load()+ordered.Load())
				runtime.Gosched()
				exclusives.Add(-1)
				return nil
			}))
		}
	})
	wg.Wait()
	assert.Zero(t, lu.set.state.Load())
	assert.Zero(t, lu.held())
}

func TestExclusiveHoldsBackEvenTheHeadOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newMemory(4096))
		older := &Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 0, 1), EDTL: 512, Read: true}
		b.d.Prepare(older)
		done := make(chan error)
		inside, leave := make(chan struct{}), make(chan struct{})
		go func() {
			done <- b.lu.Exclusive(context.Background(), func() error {
				close(inside)
				<-leave
				return fmt.Errorf("from inside")
			})
		}()
		synctest.Wait()
		select {
		case <-inside:
			t.Fatal("beside a command that has started")
		default:
		}
		b.d.Abandon(older)
		<-inside
		var ready int
		head := &Task{Nexus: b.nexus, CDB: testReady, Attr: HeadOfQueue, Ready: func() { ready++ }}
		simple := &Task{Nexus: b.nexus, CDB: testReady, Attr: Simple, Ready: func() { ready++ }}
		b.d.Prepare(simple)
		b.d.Prepare(head)
		assert.True(t, simple.Held && head.Held)
		assert.False(t, b.lu.hold(), "nor another user")
		close(leave)
		assert.ErrorContains(t, <-done, "from inside")
		require.True(t, b.lu.hold())
		b.lu.release()
		assert.Equal(t, 1, ready, "the head of the queue first")
		b.d.Resume(head)
		assert.Panics(t, func() { b.d.Resume(simple) })
		b.d.Release(head)
		assert.Equal(t, 2, ready)
		b.d.Resume(simple)
		b.d.Release(simple)

		// One that loses patience leaves nothing behind.
		b.d.Prepare(older)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { done <- b.lu.Exclusive(ctx, func() error { return nil }) }()
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
		b.d.Release(older)
		assert.Zero(t, b.lu.set.state.Load())
		require.NoError(t, b.d.Remove(0))
		assert.ErrorIs(t, b.lu.Exclusive(context.Background(), nil), ErrNoLUN)
	})
}

// TestHeldTaskSeesItsTurn: nothing is decided for a held task before its turn, and then by what is true then.
func TestHeldTaskSeesItsTurn(t *testing.T) {
	m := newMemory(4096)
	b := newBench(t, m)
	older := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true, Attr: Simple}
	b.d.Prepare(older)
	ready := 0
	held := &Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 0, 1), EDTL: 512, Read: true, Attr: Ordered, Ready: func() { ready++ }}
	b.d.Prepare(held)
	require.True(t, held.Held)
	require.False(t, held.Done)
	require.Zero(t, held.InLen)
	assert.Panics(t, func() { b.d.Execute(held) })

	require.NoError(t, b.lu.CapacityChanged())
	older.Out = [][]byte{blocksOf('n', 1)}
	b.d.Execute(older)
	assert.Zero(t, ready, "the answer has not been queued")
	b.d.Release(older)
	require.Equal(t, 1, ready)
	b.d.Resume(held)
	require.True(t, held.Done)
	assert.Equal(t, CheckCondition, held.Status)
	assert.Equal(t, []byte{0x2a, 9}, held.Sense()[12:14], "the unit attention that came meanwhile")
	b.d.Release(held)

	b.d.Prepare(held)
	require.False(t, held.Held)
	room := make([]byte, 512)
	held.In = [][]byte{room}
	b.d.Execute(held)
	assert.Equal(t, blocksOf('n', 1), room)
	b.d.Release(held)
}

// TestMappedReadIsNotOvertaken: an ordered write does not change what an older read still sends from the store's
// memory.
func TestMappedReadIsNotOvertaken(t *testing.T) {
	m := newMemory(4096)
	b := newBench(t, mappable{m})
	read := &Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 0, 1), EDTL: 512, Read: true, Attr: Simple}
	b.d.Prepare(read)
	b.d.Execute(read)
	ready := 0
	write := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true, Attr: Ordered, Ready: func() { ready++ }}
	b.d.Prepare(write)
	require.True(t, write.Held)
	b.d.Release(read)
	require.Equal(t, 1, ready)
	b.d.Resume(write)
	b.d.Abandon(write)
}

// TestRemovedUnitIsNoUnitToHeldTasks is CO-01 for tasks that wait: the disk that has taken the number is
// not theirs.
func TestRemovedUnitIsNoUnitToHeldTasks(t *testing.T) {
	b := newBench(t, newMemory(4096))
	older := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true}
	b.d.Prepare(older)
	ready := make(chan *Task, 2)
	write := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true, Attr: Ordered}
	write.Ready = func() { ready <- write }
	gone := &Task{Nexus: b.nexus, CDB: testReady, Attr: Ordered, Ready: func() { t.Error("withdrawn") }}
	b.d.Prepare(write)
	b.d.Prepare(gone)
	removed := make(chan error)
	go func() { removed <- b.d.Remove(0) }()
	for !b.lu.set.isRemoved() {
		runtime.Gosched()
	}
	disk := newMemory(4096)
	_, err := b.d.Add(0, disk, LUConfig{ID: "disk B"})
	require.NoError(t, err)
	assert.True(t, b.d.Withdraw(gone))
	assert.False(t, b.d.Withdraw(gone))
	select {
	case err := <-removed:
		t.Fatal("removed with commands in flight", err)
	default:
	}
	b.d.Abandon(older)
	assert.Same(t, write, <-ready)
	b.d.Resume(write)
	require.NoError(t, <-removed)
	assert.True(t, write.Done)
	assert.Equal(t, []byte{0x25, 0}, write.Sense()[12:14])
	b.d.Release(write)
	assert.Equal(t, make([]byte, 4096), disk.b)
}

func TestAttributesThatAreRefused(t *testing.T) {
	b := newBench(t, newMemory(4096))
	for attr := HeadOfQueue + 1; attr < 8; attr++ { // ACA and reserved ones
		k := &Task{Nexus: b.nexus, CDB: testReady, Attr: attr}
		b.d.Prepare(k)
		require.True(t, k.Done)
		assert.Equal(t, []byte{5, 0x49, 0}, []byte{k.Sense()[2], k.Sense()[12], k.Sense()[13]})
		b.d.Release(k)
	}
	assert.Zero(t, b.lu.set.state.Load())
}
