package target

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
)

// mapHook does something when memory is mapped for a read: that is between Prepare and Execute.
type mapHook struct {
	backstore.Store
	mapper backstore.Mapper
	hook   func()
}

func (m *mapHook) Memory() []byte { return m.mapper.Memory() }

func (m *mapHook) Map(off int64, n int) []byte {
	if h := m.hook; h != nil {
		m.hook = nil
		h()
	}
	return m.mapper.Map(off, n)
}

// A read was to be sent from the store's memory, and a COMPARE AND WRITE comes just before it is: it gets a
// buffer, and what it reads is whole.
func TestAReadThatMustNotBeMappedAnyMoreGetsABuffer(t *testing.T) {
	for _, traits := range []iscsi.Traits{tcpTraits, iserTraits} {
		b := newBench(t, benchConfig{})
		ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ram.Close()) })
		s := &mapHook{Store: ram, mapper: ram.(backstore.Mapper)}
		_, err = b.device.Add(2, s, scsi.LUConfig{ID: "hooked"})
		require.NoError(t, err)
		c := b.login(traits)
		c.clearUA(0, 2)

		next := bytes.Repeat([]byte{'n'}, 512)
		s.hook = func() {
			other := b.device.Attach(scsi.NexusConfig{Initiator: "other", RelativePort: 1})
			cdb := make([]byte, 16)
			cdb[0], cdb[13] = 0x89, 1
			task := scsi.Task{Nexus: other, LUN: scsi.Address(2), CDB: make([]byte, 6)}
			b.device.Prepare(&task) // its unit attention
			b.device.Release(&task)
			task.CDB, task.EDTL, task.Write = cdb, 1024, true
			b.device.Prepare(&task)
			task.Out = [][]byte{make([]byte, 512), next}
			b.device.Execute(&task)
			assert.Equal(t, scsi.Good, task.Status)
			b.device.Release(&task)
			b.device.Detach(other)
		}
		itt := c.read(2, 0, 1)
		r, _ := c.response(itt)
		require.Zero(t, r.Status)
		c.dm.set(func() { assert.Equal(t, next, c.dm.memory[itt]) })
		require.Nil(t, s.hook)
		c.alive()
	}
}
