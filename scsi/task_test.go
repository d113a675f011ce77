package scsi

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

func TestTaskKeepsNothingOfItsEarlierLife(t *testing.T) {
	m := newMemory(4096)
	b := newBench(t, mappable{m})
	r := &result{}
	r.Task = Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 99, 1), EDTL: 512, Read: true}
	b.do(r, nil)
	require.Equal(t, "5/21/00", r.sense())
	require.NotZero(t, r.Residual)

	r.CDB = cdb10(0x28, 0x08, 0, 1)
	b.do(r, nil)
	require.True(t, r.Mapped)

	r.CDB, r.EDTL, r.Read = testReady, 0, false
	b.do(r, nil)
	want := Task{Nexus: b.nexus, CDB: testReady, Done: true, Status: Good, sense: r.Task.sense}
	assert.Equal(t, want, r.Task)
	assert.Nil(t, r.Sense())
	assert.Zero(t, b.lu.held())
}

func TestSenseFormats(t *testing.T) {
	for _, c := range []struct {
		err               senseError
		fixed, descriptor string
	}{
		{
			senseError{key: 5, asc: 0x20},
			"70 00 05 00000000 0a 00000000 20 00 00 000000",
			"72 05 20 00 000000 00",
		},
		{
			*invalidField(0x102, 6),
			"70 00 05 00000000 0a 00000000 24 00 00 ce0102",
			"72 05 24 00 000000 08  02 06 0000 ce0102 00",
		},
		{
			senseError{key: 3, asc: 0x11, information: 0xfffffffe, hasInformation: true},
			"f0 00 03 fffffffe 0a 00000000 11 00 00 000000",
			"72 03 11 00 000000 0c 00 0a 80 00 00000000fffffffe",
		},
		{ // the fixed format has no room for the LBA: not VALID
			senseError{key: 3, asc: 0x11, information: 1 << 32, hasInformation: true},
			"70 00 03 00000000 0a 00000000 11 00 00 000000",
			"72 03 11 00 000000 0c 00 0a 80 00 0000000100000000",
		},
	} {
		assert.Equal(t, golden(t, c.fixed), c.err.appendFixed(nil))
		assert.Equal(t, golden(t, joined(c.descriptor)), c.err.appendDescriptor(nil))
	}
	assert.EqualError(t, errNoSpace, "check condition 07/27/07")
}

// joined takes the double spaces out of a line that is all bytes.
func joined(s string) string { return string(bytes.ReplaceAll([]byte(s), []byte("  "), []byte(" "))) }

func TestExecuteInsistsOnWhatPrepareAskedFor(t *testing.T) {
	b := newBench(t, newMemory(4096))
	task := Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 0, 1), EDTL: 512, Write: true}
	b.d.Prepare(&task)
	task.Out = [][]byte{make([]byte, 511)}
	assert.Panics(t, func() { b.d.Execute(&task) })
	b.d.Abandon(&task)
	assert.Panics(t, func() { b.d.Execute(&task) }, "abandoned")
	task.CDB, task.EDTL = testReady, 0
	b.d.Prepare(&task)
	assert.Panics(t, func() { b.d.Execute(&task) }, "done")
}

func TestAbandonAndReleaseMayComeTwice(t *testing.T) {
	b := newBench(t, mappable{newMemory(4096)})
	task := Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 0, 1), EDTL: 512, Read: true}
	b.d.Prepare(&task)
	assert.EqualValues(t, 1, b.lu.held())
	b.d.Abandon(&task)
	b.d.Abandon(&task)
	assert.Zero(t, b.lu.held())
	b.d.Prepare(&task)
	b.d.Execute(&task)
	assert.EqualValues(t, 1, b.lu.held(), "mapped: held until the data has left")
	b.d.Release(&task)
	b.d.Release(&task)
	assert.Zero(t, b.lu.held())
	b.d.Prepare(&task)
	b.d.Prepare(&task)
	assert.EqualValues(t, 1, b.lu.held(), "reused without Release")
	b.d.Abandon(&task)
	assert.Zero(t, b.lu.held())
}

func TestRemoveWaitsForPreparedTasks(t *testing.T) {
	for name, end := range map[string]func(d *Device, t *Task){
		"executed":  func(d *Device, t *Task) { t.In = [][]byte{make([]byte, t.InLen)}; d.Execute(t); d.Release(t) },
		"abandoned": func(d *Device, t *Task) { d.Abandon(t) },
		"mapped":    func(d *Device, t *Task) { d.Execute(t); d.Release(t) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s backstore.Store = newMemory(4096)
				if name == "mapped" {
					s = mappable{newMemory(4096)}
				}
				b := newBench(t, s)
				task := Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 0, 1), EDTL: 512, Read: true}
				b.d.Prepare(&task)
				removed := make(chan error, 1)
				go func() { removed <- b.d.Remove(0) }()
				synctest.Wait()
				require.Empty(t, removed, "removed under a task")
				assert.Equal(t, "5/25/00", b.ready(0), "no new command")
				synctest.Wait()
				require.Empty(t, removed, "a refused command is not the one to wait for")
				end(b.d, &task)
				require.NoError(t, <-removed)
				assert.Equal(t, Good, task.Status)
			})
		})
	}
}

// A unit comes and goes under I/O: no command reaches a store after Remove has returned, and what is
// read is of the disk that was there, never of one that came since the last attention.
func TestAddAndRemoveUnderIO(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
			defer d.Detach(b.nexus)
			generation := byte(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := b.run(lunAt(5), cdb10(0x28, 0, 1, 1), 512, nil)
				switch r.sense() {
				case "":
					if generation == 0 {
						generation = r.data[0]
					}
					if !assert.Equal(t, blocksOf(generation, 1), r.data) {
						return
					}
				case "6/29/00", "6/29/03", "6/3f/0e":
					generation = 0
				case "5/25/00":
				default:
					assert.Fail(t, r.sense())
				}
			}
		})
	}
	for i := range 200 {
		m := newMemory(4096)
		copy(m.b, bytes.Repeat([]byte{byte(i + 1)}, 4096))
		_, err := d.Add(5, m, LUConfig{ID: "x"})
		require.NoError(t, err)
		d.ResetLU(lunAt(5), nil)
		b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "adder", RelativePort: 1})}
		b.ready(5)
		assert.Equal(t, byte(i+1), b.run(lunAt(5), cdb10(0x28, 0, 1, 1), 512, nil).data[0])
		d.Detach(b.nexus)
		require.NoError(t, d.Remove(5))
		m.mu.Lock()
		m.b = nil // a read from now on would panic
		m.mu.Unlock()
	}
	close(stop)
	wg.Wait()
	assert.Empty(t, d.nexuses)
}

func readTask(b *bench) (*Task, [][]byte) {
	return &Task{Nexus: b.nexus, CDB: cdb10(0x28, 0, 8, 8), EDTL: 4096, Read: true}, [][]byte{make([]byte, 4096)}
}

func doRead(b *bench, task *Task, room [][]byte) {
	b.d.Prepare(task)
	if !task.Mapped {
		task.In = room
	}
	b.d.Execute(task)
	b.d.Release(task)
}

func writeTask(b *bench) (*Task, [][]byte) {
	return &Task{Nexus: b.nexus, CDB: cdb10(0x2a, 0, 8, 8), EDTL: 4096, Write: true}, [][]byte{make([]byte, 4096)}
}

func doWrite(b *bench, task *Task, data [][]byte) {
	b.d.Prepare(task)
	task.Out = data
	b.d.Execute(task)
}

func TestReadAndWriteDoNotAllocate(t *testing.T) {
	m := newMemory(1 << 20)
	copied, mapped := newBench(t, m), newBench(t, mappable{m})
	for name, b := range map[string]*bench{"copied": copied, "mapped": mapped} {
		read, room := readTask(b)
		assert.Zero(t, testing.AllocsPerRun(100, func() { doRead(b, read, room) }), name)
		assert.Equal(t, Good, read.Status)
		write, data := writeTask(b)
		assert.Zero(t, testing.AllocsPerRun(100, func() { doWrite(b, write, data) }), name)
		assert.Equal(t, Good, write.Status)
	}
}

func BenchmarkRead4KMapped(b *testing.B) {
	bench := newBench(b, mappable{newMemory(1 << 20)})
	task, room := readTask(bench)
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		doRead(bench, task, room)
	}
}

func BenchmarkWrite4K(b *testing.B) {
	bench := newBench(b, mappable{newMemory(1 << 20)})
	task, data := writeTask(bench)
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		doWrite(bench, task, data)
	}
}
