package scsi

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// another is one more initiator of a bench's unit.
func (b *bench) another() *bench {
	o := &bench{t: b.t, d: b.d, lu: b.lu, nexus: b.d.Attach(NexusConfig{Initiator: "j", RelativePort: 1})}
	require.Equal(b.t, "6/29/00", o.run(0, make([]byte, 6), 0, nil).sense())
	return o
}

func compareAndWrite(lba uint64, blocks byte) []byte {
	c := cdb16(0x89, 0, lba, 0)
	c[13] = blocks
	return c
}

func writeAtomic(lba uint64, blocks uint16) []byte {
	c := cdb16(0x9c, 0, lba, 0)
	binary.BigEndian.PutUint16(c[12:], blocks)
	return c
}

// LU-07 of the field reports: initiators that count up one block by COMPARE AND WRITE, and try again on
// MISCOMPARE, lose no count, whatever else goes on: reads see whole blocks only.
func TestCompareAndWriteLosesNoUpdate(t *testing.T) {
	const initiators, counts = 8, 200
	b := newBench(t, newBare(64*512))
	var wg sync.WaitGroup
	for range initiators {
		wg.Go(func() {
			o := b.another()
			for range counts {
				for {
					old := o.run(0, cdb10(0x28, 0, 7, 2), 1024, nil).data
					n := binary.BigEndian.Uint64(old)
					if !assert.Equal(t, bytes.Repeat(old[:8], 128), old, "torn") {
						return
					}
					next := bytes.Repeat(binary.BigEndian.AppendUint64(nil, n+1), 128)
					r := o.run(0, compareAndWrite(7, 2), 0, append(old, next...))
					if r.Status == Good {
						break
					}
					if !assert.Equal(t, "e/1d/00", r.sense()) {
						return
					}
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, initiators*counts, binary.BigEndian.Uint64(b.run(0, cdb10(0x28, 0, 8, 1), 512, nil).data))
	assert.Zero(t, b.lu.held())
	assert.EqualValues(t, stateCopies, b.lu.state.Load())
}

// Reads, mapped ones among them until the first atomic command, and verifies see an atomic write whole or
// not at all. An ordinary write beside it is let through, and one of the same blocks is not mixed with it.
func TestAtomicWritesAreSeenWholeOrNotAtAll(t *testing.T) {
	const blocks, rounds = 16, 100
	b := newBench(t, newBare(64*512))
	var wg sync.WaitGroup
	all := func(f func(o *bench, i int)) {
		wg.Go(func() {
			o := b.another()
			for i := range rounds {
				f(o, i)
			}
		})
	}
	for range 3 {
		all(func(o *bench, _ int) {
			r := o.run(0, cdb10(0x28, 0, 8, blocks), blocks*512, nil)
			require.Equal(t, Good, r.Status)
			assert.Equal(t, bytes.Repeat(r.data[:1], blocks*512), r.data, "torn")
		})
	}
	all(func(o *bench, i int) {
		assert.Equal(t, Good, o.run(0, writeAtomic(8, blocks), 0, blocksOf(byte(i), blocks)).Status)
	})
	all(func(o *bench, i int) {
		assert.Equal(t, Good, o.run(0, cdb16(0x8b, 0, 8, blocks), 0, blocksOf(byte(1<<(i%8)), blocks)).Status)
	})
	all(func(o *bench, i int) {
		assert.Equal(t, Good, o.run(0, cdb10(0x2a, 0, 8+blocks, 4), 0, blocksOf(byte(i), 4)).Status)
		assert.Equal(t, Good, o.run(0, cdb10(0x2f, 0, 0, 64), 0, nil).Status)
	})
	wg.Wait()
	assert.Equal(t, blocksOf(rounds-1, 4), b.lu.store.(*bare).b[(8+blocks)*512:(8+blocks+4)*512])
}

// An ordinary write of the blocks of a command that runs alone waits for it.
func TestOrdinaryWritesDoNotMixWithAtomicOnes(t *testing.T) {
	b := newBench(t, newBare(64*512))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			o := b.another()
			for range 100 {
				if i == 0 { // one, or ordinary writes mix among themselves
					require.Equal(t, Good, o.run(0, cdb10(0x2a, 0, 8, 8), 0, blocksOf('w', 8)).Status)
					continue
				}
				require.Equal(t, Good, o.run(0, writeAtomic(10, 4), 0, blocksOf(byte(i), 4)).Status)
			}
		})
	}
	wg.Wait()
	got := b.lu.store.(*bare).b[10*512 : 14*512]
	assert.Equal(t, bytes.Repeat(got[:1], 4*512), got)
}

// The list alone: who waits for whom.
func TestGateLetsInWhoDoesNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newMemory(1<<20))
		lu, inside := b.lu, map[string]*pass{}
		var mu sync.Mutex
		enter := func(name string, lba, blocks uint64, alone bool) {
			go func() {
				p := &pass{lba: lba, end: lba + blocks, alone: alone}
				require.NoError(t, lu.enter(p))
				mu.Lock()
				inside[name] = p
				mu.Unlock()
			}()
			synctest.Wait()
		}
		leave := func(name string) {
			mu.Lock()
			require.Contains(t, inside, name)
			lu.leave(inside[name])
			delete(inside, name)
			mu.Unlock()
			synctest.Wait()
		}
		check := func(want ...string) {
			t.Helper()
			names := []string{}
			mu.Lock()
			defer mu.Unlock()
			for n := range inside {
				names = append(names, n)
			}
			assert.ElementsMatch(t, want, names)
		}
		enter("r1", 10, 10, false)
		enter("r2", 15, 10, false)
		check("r1", "r2")
		enter("a1", 18, 4, true) // waits for both
		enter("a2", 40, 4, true)
		enter("r3", 21, 1, false) // behind a1
		enter("r4", 22, 1, false) // touches a1, no more
		check("r1", "r2", "a2", "r4")
		enter("a3", 16, 3, true) // behind a1 too
		leave("r1")
		check("r2", "a2", "r4")
		leave("r2")
		check("a1", "a2", "r4")
		leave("a2")
		leave("a1")
		check("r3", "r4", "a3")
		leave("a3")
		leave("r3")
		leave("r4")
		assert.Zero(t, lu.state.Load()&stateClosed)
		assert.Nil(t, lu.gate.first)
		assert.Nil(t, lu.gate.last)
	})
}

// A read that has been sent from the store's memory, and that the initiator does not take, holds up the
// first atomic command: no ordinary one, and no atomic one after that.
func TestMappedReadHoldsUpOnlyTheFirstAtomicCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newBare(64*512))
		stuck := Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 7, 1), EDTL: 512, Read: true}
		b.d.Prepare(&stuck)
		b.d.Execute(&stuck)
		require.True(t, stuck.Mapped)
		parked := Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 7, 1), EDTL: 512, Read: true}
		b.d.Prepare(&parked)
		require.True(t, parked.Mapped)

		done := false
		go func() {
			o := b.another()
			assert.Equal(t, Good, o.run(0, compareAndWrite(7, 1), 0, append(blocksOf(0, 1), blocksOf('x', 1)...)).Status)
			done = true
		}()
		synctest.Wait()
		require.False(t, done, "written under a read that is on its way")
		r := b.run(0, cdb10(0x28, 0, 7, 1), 512, nil)
		assert.Equal(t, blocksOf(0, 1), r.data)
		assert.False(t, r.Mapped)
		assert.Equal(t, Good, b.run(0, cdb10(0x2a, 0, 9, 1), 0, blocksOf('w', 1)).Status)
		b.d.Execute(&parked)
		require.True(t, parked.NeedsRoom)

		b.d.Release(&stuck)
		synctest.Wait()
		require.True(t, done)
		parked.In = [][]byte{make([]byte, 512)}
		b.d.Execute(&parked)
		assert.Equal(t, blocksOf('x', 1), parked.In[0])
		b.d.Release(&parked)
		again := Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 7, 1), EDTL: 512, Read: true}
		b.d.Prepare(&again)
		assert.False(t, again.Mapped, "a unit that has run something alone maps no more")
		b.d.Abandon(&again)
		assert.Zero(t, b.lu.held())
	})
}

// A command that is abandoned with its way in open, and one that panics, leave nothing behind in the gate.
func TestGateForgetsTasksThatEndOtherwise(t *testing.T) {
	m := newMemory(64 * 512)
	b := newBench(t, m)
	prepare := func() *Task {
		t := &Task{Nexus: b.nexus, CDB: compareAndWrite(7, 1), EDTL: 1024, Write: true}
		b.d.Prepare(t)
		t.Out = [][]byte{make([]byte, 1024)}
		return t
	}
	b.d.Abandon(prepare())
	assert.Zero(t, b.lu.held())
	m.b = nil // the store panics
	for _, cdb := range [][]byte{compareAndWrite(7, 1), cdb10(0x2a, 0, 7, 2)} {
		task := &Task{Nexus: b.nexus, CDB: cdb, EDTL: 1024, Write: true}
		b.d.Prepare(task)
		task.Out = [][]byte{make([]byte, 1024)}
		assert.Panics(t, func() { b.d.Execute(task) })
		b.d.Abandon(task)
		assert.Zero(t, b.lu.held())
		assert.Zero(t, b.lu.fast())
		assert.Nil(t, b.lu.gate.first)
	}
}

// Many at once, by both ways: nobody is inside with somebody who is alone there and overlaps, and everybody
// gets in and out again.
func TestGateUnderLoad(t *testing.T) {
	type inside struct {
		lba, end uint64
		alone    bool
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newMemory(1<<20))
		var mu sync.Mutex
		var now []inside
		visit := func(in inside, wait time.Duration) {
			mu.Lock()
			for _, o := range now {
				if (o.alone || in.alone) && o.lba < in.end && in.lba < o.end {
					assert.Fail(t, "together inside", "%+v %+v", o, in)
				}
			}
			now = append(now, in)
			mu.Unlock()
			time.Sleep(wait) // of the bubble's clock: so that visits overlap
			mu.Lock()
			now = slices.DeleteFunc(now, func(o inside) bool { return o == in })
			mu.Unlock()
		}
		for i := range 12 {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			go func() {
				for range 200 {
					lba := random.Uint64N(64)
					in := inside{lba, lba + 1 + random.Uint64N(8), i%4 == 0}
					wait := time.Duration(random.Int64N(3)) * time.Millisecond
					if !in.alone {
						require.NoError(t, b.lu.through(in.lba, in.end-in.lba, func() error { visit(in, wait); return nil }))
					} else {
						p := pass{lba: in.lba, end: in.end, alone: true}
						require.NoError(t, b.lu.enter(&p))
						visit(in, wait)
						b.lu.leave(&p)
					}
					time.Sleep(time.Duration(random.Int64N(5)) * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Hour) // everybody is through long before, or waits for ever
		synctest.Wait()
		assert.Empty(t, now)
		assert.Zero(t, b.lu.fast())
		assert.Nil(t, b.lu.gate.first)
		assert.Zero(t, b.lu.state.Load()&stateClosed)
	})
}
