package target

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitWoken waits until something was put into c's empty inbox. It does not look into the inbox: that one's lock is held
// over Wake, which takes the datamover's.
func waitWoken(t *testing.T, c *conn) {
	t.Helper()
	dm := c.dm.(*fakeDM)
	dm.waitFor(t, "a worker", func() bool {
		woken := dm.woken
		dm.woken = false
		return woken
	})
}

// TestWorkersAreFair: with all goroutines and more stuck in two units, a third runs at once; no unit has more than
// half of the workers, and all that was queued is done in the end.
func TestWorkersAreFair(t *testing.T) {
	const limit = 4
	w := newWorkers(limit)
	dev := scsi.NewDevice(scsi.DeviceConfig{})
	var stores []*backstoretest.Gate
	for i := range 3 {
		ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
		require.NoError(t, err)
		s := &backstoretest.Gate{Store: ram}
		stores = append(stores, s)
		_, err = dev.Add(i, s, scsi.LUConfig{ID: string(rune('a' + i))})
		require.NoError(t, err)
		if i < 2 {
			s.Hold()
		}
	}
	nexus := dev.Attach(scsi.NexusConfig{Initiator: "x", RelativePort: 1})
	defer dev.Detach(nexus)
	c := newConn(&Server{}, &portal{}, newFakeDM(tcpTraits))
	var left atomic.Int32
	submit := func(unit int) *task {
		k := &task{c: c, device: dev}
		k.scsi.Nexus, k.scsi.LUN, k.scsi.CDB, k.scsi.EDTL, k.scsi.Read = nexus, scsi.Address(unit), read10(0, 1), 512, true
		for dev.Prepare(&k.scsi); k.scsi.Done; dev.Prepare(&k.scsi) { // the unit attention
		}
		k.scsi.In = [][]byte{make([]byte, 512)}
		left.Add(1)
		w.submit(k)
		return k
	}
	done := func(n int) {
		t.Helper()
		for n > 0 {
			items := c.inbox.take()
			n -= len(items)
			left.Add(-int32(len(items)))
			if len(items) == 0 {
				waitWoken(t, c)
			}
		}
		require.Zero(t, n)
	}
	for range 8 {
		submit(0)
		submit(1)
	}
	stores[0].Held(t, limit/2)
	stores[1].Held(t, limit/2)
	for range 3 {
		submit(2)
		done(1)
	}
	w.mu.Lock()
	assert.Equal(t, limit/2, w.queues[dev.LU(0)].running)
	assert.Equal(t, limit/2, w.queues[dev.LU(1)].running)
	w.mu.Unlock()
	last := submit(0)
	assert.True(t, w.cancel(last))
	assert.False(t, w.cancel(last))
	dev.Abandon(&last.scsi)
	left.Add(-1)
	stores[0].Release()
	done(8)
	stores[1].Release()
	done(8)
	assert.Zero(t, left.Load())
	w.close()
	assert.Empty(t, w.queues)
	for _, s := range stores {
		require.NoError(t, s.Close())
	}
}

// TestWorkersUnderLoad submits from many goroutines to many units; nothing is lost or stuck.
func TestWorkersUnderLoad(t *testing.T) {
	w := newWorkers(3)
	dev := scsi.NewDevice(scsi.DeviceConfig{})
	ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	require.NoError(t, err)
	for i := range 5 {
		_, err = dev.Add(i, &backstoretest.Gate{Store: ram}, scsi.LUConfig{ID: "x"})
		require.NoError(t, err)
	}
	nexus := dev.Attach(scsi.NexusConfig{Initiator: "x", RelativePort: 1})
	c := newConn(&Server{}, &portal{}, newFakeDM(tcpTraits))
	var wg sync.WaitGroup
	const each = 200
	cancelled := atomic.Int32{}
	for g := range 4 {
		wg.Go(func() {
			for i := range each {
				k := &task{c: c, device: dev}
				k.scsi.Nexus, k.scsi.LUN, k.scsi.CDB, k.scsi.EDTL, k.scsi.Read = nexus, scsi.Address((g+i)%5), read10(0, 1), 512, true
				for dev.Prepare(&k.scsi); k.scsi.Done; dev.Prepare(&k.scsi) {
				}
				k.scsi.In = [][]byte{make([]byte, 512)}
				w.submit(k)
				if i%7 == 0 && w.cancel(k) {
					dev.Abandon(&k.scsi)
					cancelled.Add(1)
				}
			}
		})
	}
	wg.Wait()
	for n := 4*each - int(cancelled.Load()); n > 0; {
		items := c.inbox.take()
		n -= len(items)
		if len(items) == 0 {
			waitWoken(t, c)
		}
	}
	w.close()
	assert.Empty(t, w.queues)
	dev.Detach(nexus)
	require.NoError(t, ram.Close())
}
