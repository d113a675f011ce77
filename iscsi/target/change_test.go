package target

import (
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// replace puts a disk at unit 1's place while commands of the old one may still run. gone is closed when none
// does any more.
func (b *bench) replace(disk backstore.Store) (gone chan struct{}) {
	b.t.Helper()
	old := b.device.LU(1)
	gone = make(chan struct{})
	go func() {
		defer close(gone)
		assert.NoError(b.t, b.device.Remove(1))
	}()
	require.Eventually(b.t, func() bool { return b.device.LU(1) != old }, testTimeout, time.Millisecond)
	_, err := b.device.Add(1, disk, scsi.LUConfig{ID: "another"})
	require.NoError(b.t, err)
	return gone
}

// ramDisk is a store that is closed after the bench.
func ramDisk(t *testing.T) backstore.Store {
	t.Helper()
	s, err := backstore.Open("ram", backstore.Options{"size": "8MiB"})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// empty reports whether the first blocks of a store are zeros.
func empty(t *testing.T, s backstore.Store) bool {
	p := make([]byte, 4096)
	require.NoError(t, s.ReadAt([][]byte{p}, 0))
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}

// TestReplacedDiskIsNeverTouchedByCommandsForTheOldOne is CO-01 with commands in flight, in every state:
// they end on the old disk, and the next command for the number gets unit attentions before it does
// anything.
func TestReplacedDiskIsNeverTouchedByCommandsForTheOldOne(t *testing.T) {
	for _, st := range tmStates {
		t.Run(st.name, func(t *testing.T) {
			disk := ramDisk(t)
			b := newBench(t, benchConfig{})
			c := b.login(tcpTraits, "InitialR2T=No")
			c.clearUA(0, 1)
			d := b.asker()
			d.clearUA(0, 1)
			itt := st.start(b, c)
			if st.responds {
				c.good(itt)
			} else {
				c.ping()
			}
			gone := b.replace(disk)
			for _, want := range []senseCode{0x06_29_00, 0x06_3f_03, 0x06_3f_0e} {
				d.checkCondition(d.writes(1, 0, pattern(512, 7)), want)
			}
			assert.True(t, empty(t, disk))
			d.good(d.writes(1, 8, pattern(512, 7))) // it does not wait for the old disk

			var bhs [iscsi.BHSSize]byte
			switch st.name {
			case "collecting unsolicited data":
				(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
				c.push(bhs, nil, pattern(512, 1))
				c.good(itt)
			case "fetching":
				c.dm.releaseAll()
				c.dm.set(func() {
					c.dm.memory[itt] = pattern(1024, 1)
					c.dm.finish(itt)
				})
				c.good(itt)
			case "in the store", "reading from the store":
				st.finish(b, c)
				c.good(itt)
			case "held back behind another task":
				b.mu.Lock()
				older := b.fakes[2] // its connection; it is let go
				b.mu.Unlock()
				older.set(func() {
					for itt := range older.gets {
						older.finish(itt)
					}
				})
				c.checkCondition(itt, 0x05_25_00)
			case "waiting for buffers":
				c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, RefITT: itt})
				c.tmfResponse(iscsi.TMComplete)
			case "responding":
				c.dm.releaseAll()
			}
			<-gone
			assert.True(t, empty(t, disk), "what was sent to the old disk is not on the new one")
			for _, want := range []senseCode{0x06_29_00, 0x06_3f_03, 0x06_3f_0e} {
				c.checkCondition(c.read(1, 0, 1), want)
			}
			c.good(c.read(1, 0, 1))
		})
	}
}

// TestHangingDiskDoesNotSlowItsSuccessor: the workers that stand in the store of a removed unit are not counted
// against the one that has its number.
func TestHangingDiskDoesNotSlowItsSuccessor(t *testing.T) {
	next := &backstoretest.Gate{Store: ramDisk(t)}
	b := newBench(t, benchConfig{chunks: 1024, config: Config{Workers: 4}})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	b.slow.Hold()
	for range 4 {
		c.read(1, 0, 1)
	}
	b.slow.Held(t, 2)
	gone := b.replace(next)
	for range 3 {
		c.response(c.read(1, 0, 1)) // unit attentions
	}
	next.Hold()
	c.read(1, 0, 1)
	c.read(1, 0, 1)
	next.Held(t, 2) // both at once
	next.Release()
	c.next()
	c.next()
	b.slow.Release()
	<-gone
}
