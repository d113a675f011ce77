package scsi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

// elastic is a memory that can be resized; what is beyond its end cannot be reached without a panic.
type elastic struct{ *memory }

func (e elastic) Resize(size int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	b := make([]byte, size)
	copy(b, e.b)
	e.b, e.info.SizeBytes = b, size
	return nil
}

func (e elastic) Info() backstore.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info
}

// CO-01: what a nexus is told that has known the old disk, in this order, before the new one is touched; and what
// those are told that have not.
func TestReplacedDiskIsAnnounced(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(5, "disk A")
	b.run(0, reportLUNs, 4096, nil)
	require.Equal(t, "6/29/00", b.ready(5))
	require.Empty(t, b.ready(5))
	require.NoError(t, b.d.Remove(5))
	require.Equal(t, "5/25/00", b.ready(5))
	b.add(5, "disk B")
	for _, want := range []string{"6/29/00", "6/3f/03", "6/3f/0e", ""} {
		assert.Equal(t, want, b.ready(5))
	}
	assert.Empty(t, b.ready(0), "told through the new unit already")

	late := &bench{t: t, d: b.d, nexus: b.d.Attach(NexusConfig{Initiator: "late", RelativePort: 1})}
	assert.Equal(t, "6/29/00", late.ready(5))
	assert.Empty(t, late.ready(5), "it has never seen disk A")

	// The same disk again is no other one.
	require.NoError(t, b.d.Remove(5))
	b.add(5, "disk B")
	b.run(0, reportLUNs, 4096, nil)
	assert.Equal(t, "6/29/00", b.ready(5))
	assert.Empty(t, b.ready(5))

	// Nor is one that has not had the number.
	b.add(6, "disk C")
	for _, want := range []string{"6/29/00", "6/3f/0e", ""} {
		assert.Equal(t, want, b.ready(6))
	}
}

func TestNumbersAreHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDevice(DeviceConfig{HoldNumbers: time.Minute})
		add := func(id string) error {
			_, err := d.Add(1, newMemory(4096), LUConfig{ID: id})
			return err
		}
		require.NoError(t, add("a"))
		require.NoError(t, d.Remove(1))
		assert.ErrorIs(t, add("b"), ErrNumberHeld)
		require.NoError(t, add("a"), "the same disk may come back")
		require.NoError(t, d.Remove(1))
		time.Sleep(time.Minute)
		assert.NoError(t, add("b"))
	})
}

func TestRemoveThatLosesPatience(t *testing.T) {
	b := newBench(t, newMemory(4096))
	task := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true}
	b.d.Prepare(task)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, b.d.RemoveContext(ctx, 0), context.Canceled)
	assert.Equal(t, "5/25/00", b.ready(0), "gone all the same")
	assert.ErrorIs(t, b.lu.Wait(ctx), context.Canceled)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { assert.NoError(t, b.lu.Wait(context.Background())) })
	}
	task.Out = [][]byte{blocksOf('x', 1)}
	b.d.Execute(task)
	b.d.Release(task)
	wg.Wait()
}

// LU-08: a grown disk is told of once per nexus, and commands in flight end well.
func TestGrow(t *testing.T) {
	b := newBench(t, elastic{newMemory(4096)})
	other := b.another()
	inFlight := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true, Out: nil}
	b.d.Prepare(inFlight)
	require.NoError(t, b.lu.Resize(context.Background(), 8192+100, false))
	inFlight.Out = [][]byte{blocksOf('x', 1)}
	b.d.Execute(inFlight)
	assert.Equal(t, Good, inFlight.Status)
	b.d.Release(inFlight)
	assert.EqualValues(t, 16, b.lu.Blocks())
	for _, n := range []*bench{b, other} {
		assert.Equal(t, "6/2a/09", n.ready(0))
		assert.Empty(t, n.ready(0))
		assert.Equal(t, Good, n.run(0, cdb10(0x28, 0, 15, 1), 512, nil).Status)
	}
}

// grown is a store on something that others make larger: it knows when it is asked to look.
type grown struct{ *memory }

func (g grown) Measure() error {
	g.info.SizeBytes = int64(len(g.b))
	return g.err
}

// LU-08: a device that has grown underneath its store.
func TestCapacityChangedLooksAtTheDevice(t *testing.T) {
	store := newMemory(4096)
	b := newBench(t, grown{store})
	store.b = make([]byte, 8192)
	require.NoError(t, b.lu.CapacityChanged())
	assert.EqualValues(t, 16, b.lu.Blocks())
	assert.Equal(t, "6/2a/09", b.ready(0))
	store.err = errors.New("gone")
	require.ErrorIs(t, b.lu.CapacityChanged(), store.err)
	assert.EqualValues(t, 16, b.lu.Blocks())
}

// LU-08: a disk shrinks only if that is asked for, and while no command can reach what goes.
func TestShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := elastic{newMemory(8192)}
		b := newBench(t, store)
		assert.ErrorIs(t, b.lu.Resize(context.Background(), 4096, false), ErrShrink)
		assert.Empty(t, b.ready(0))
		inFlight := &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 15, 1), EDTL: 512, Write: true}
		b.d.Prepare(inFlight)
		done := make(chan error)
		go func() { done <- b.lu.Resize(context.Background(), 4096, true) }()
		synctest.Wait()
		assert.EqualValues(t, 8192, store.Info().SizeBytes, "not under a write")
		ready := make(chan struct{})
		later := &Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 15, 1), EDTL: 512, Read: true, Ready: func() { close(ready) }}
		b.d.Prepare(later)
		require.True(t, later.Held)
		inFlight.Out = [][]byte{blocksOf('x', 1)}
		b.d.Execute(inFlight)
		assert.Equal(t, Good, inFlight.Status)
		b.d.Release(inFlight)
		require.NoError(t, <-done)
		<-ready
		b.d.Resume(later)
		assert.Equal(t, []byte{0x2a, 0x09}, later.Sense()[12:14])
		assert.Equal(t, "5/21/00", b.run(0, later.CDB, 512, nil).sense())
		b.d.Release(later)

		inFlight.CDB = cdb10(0x2a, 0, 0, 1)
		b.d.Prepare(inFlight)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		assert.ErrorIs(t, b.lu.Resize(ctx, 512, true), context.DeadlineExceeded)
		assert.EqualValues(t, 4096, store.Info().SizeBytes)
		b.d.Abandon(inFlight)
		require.Equal(t, Good, b.run(0, testReady, 0, nil).Status)
	})
}

func TestResizeThatFails(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, newMemory(4096))
	assert.ErrorIs(t, b.lu.Resize(ctx, 8192, false), errors.ErrUnsupported)
	store := elastic{newMemory(4096)}
	b = newBench(t, store)
	assert.Error(t, b.lu.Resize(ctx, 511, true))
	store.err = backstore.ErrNoSpace
	assert.ErrorIs(t, b.lu.Resize(ctx, 8192, false), backstore.ErrNoSpace)
	assert.EqualValues(t, 8, b.lu.Blocks())
	assert.Empty(t, b.ready(0), "nothing has changed")
	require.NoError(t, b.d.Remove(0))
	assert.ErrorIs(t, b.lu.Resize(ctx, 8192, false), ErrNoLUN)
	assert.ErrorIs(t, b.lu.Resize(ctx, 512, true), ErrNoLUN)
}

// TestSetReadOnly: new writes are refused at once, and when it returns none that came before is still to come.
func TestSetReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(4096)
		b := newBench(t, m)
		other := b.another()
		write := cdb10(0x2a, 0, 0, 1)
		inFlight := &Task{Nexus: b.nexus, CDB: write, EDTL: 512, Write: true}
		b.d.Prepare(inFlight)
		done := make(chan error)
		go func() { done <- b.lu.SetReadOnly(context.Background(), true) }()
		synctest.Wait()
		require.Empty(t, done)
		inFlight.Out = [][]byte{blocksOf('x', 1)}
		b.d.Execute(inFlight)
		assert.Equal(t, Good, inFlight.Status)
		b.d.Release(inFlight)
		require.NoError(t, <-done)

		for _, n := range []*bench{b, other} {
			assert.Equal(t, "6/2a/01", n.ready(0))
			assert.Equal(t, "7/27/00", n.run(0, write, 0, blocksOf('y', 1)).sense())
			mode := n.run(0, []byte{0x1a, 0, 0x3f, 0, 255, 0}, 255, nil).data
			assert.Equal(t, byte(0x90), mode[2], "WP, DPOFUA")
		}
		assert.Equal(t, blocksOf('x', 1), m.b[:512])
		require.NoError(t, b.lu.SetReadOnly(context.Background(), true))
		assert.Empty(t, b.ready(0), "nothing has changed")
		require.NoError(t, b.lu.SetReadOnly(context.Background(), false))
		assert.Equal(t, "6/2a/01", b.ready(0))
		assert.Equal(t, Good, b.run(0, write, 0, blocksOf('y', 1)).Status)

		b.d.Prepare(inFlight)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		assert.ErrorIs(t, b.lu.SetReadOnly(ctx, true), context.DeadlineExceeded)
		b.d.Abandon(inFlight)
		b.ready(0)
		assert.Equal(t, "7/27/00", b.run(0, write, 0, blocksOf('y', 1)).sense(), "read-only all the same")

		m.mu.Lock()
		m.info.ReadOnly = true
		m.mu.Unlock()
		assert.ErrorIs(t, b.lu.SetReadOnly(context.Background(), false), backstore.ErrReadOnly)
		require.NoError(t, b.d.Remove(0))
		assert.ErrorIs(t, b.lu.SetReadOnly(context.Background(), true), ErrNoLUN)
	})
}
