package iser

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// A duo runs one command at a time through both roles on one goroutine.
type duo struct {
	t    testing.TB
	p    *pair
	ram  *ramTarget
	evs  []iscsi.Event
	tr   iscsi.Transfer
	in   [1][]byte
	buf  []byte
	itt  uint32
	done int
}

func newDuo(t testing.TB, size int) *duo {
	p := newPair(t, fabric.Options{}, TargetConfig{}, InitiatorConfig{})
	params := normalParams()
	p.enable(t, params)
	d := &duo{t: t, p: p, evs: make([]iscsi.Event, 32), buf: make([]byte, size)}
	store := make([]byte, size)
	require.NoError(t, p.lis.Register(store))
	d.ram = &ramTarget{t: t, dm: p.tgt, p: params, store: store, tasks: map[uint32]*ramTask{}}
	return d
}

func (d *duo) run(write bool) {
	d.itt++
	cmd := iscsi.SCSICommand{Read: !write, Write: write, ITT: d.itt, EDTL: uint32(len(d.buf))}
	binary.BigEndian.PutUint32(cmd.CDB[:], 0)
	var bhs [iscsi.BHSSize]byte
	cmd.Put(&bhs)
	d.tr = iscsi.Transfer{ITT: d.itt, EDTL: uint32(len(d.buf)), InPlace: d.tr.InPlace}
	d.in[0] = d.buf
	if write {
		d.tr.Out = d.in[:]
	} else {
		d.tr.In = d.in[:]
	}
	d.p.ini.SendCommand(&d.tr, &bhs, nil)
	d.check(d.p.ini.Flush())
	for d.done = 0; d.done < 2; {
		past := time.Unix(1, 0)
		n, err := d.p.tgt.Wait(d.evs, past)
		d.check(err)
		for i := range d.evs[:n] {
			ev := &d.evs[i]
			d.ram.handle(ev)
		}
		d.check(d.p.tgt.Flush())
		n, err = d.p.ini.Wait(d.evs, past)
		d.check(err)
		d.done += n
		d.check(d.p.ini.Flush())
	}
	if !write && d.p.ini.Received(&d.tr) != uint32(len(d.buf)) {
		d.t.Fatal("read fell short")
	}
}

func (d *duo) check(err error) {
	if err != nil {
		d.t.Fatal(err)
	}
}

func TestWarmDataPathDoesNotAllocate(t *testing.T) {
	for _, size := range []int{4096, 128 << 10} {
		d := newDuo(t, size)
		for range 300 {
			d.run(true)
			d.run(false)
		}
		require.Zero(t, testing.AllocsPerRun(200, func() { d.run(false) }), "read of %d bytes", size)
		require.Zero(t, testing.AllocsPerRun(200, func() { d.run(true) }), "write of %d bytes", size)
	}
}

func benchIO(b *testing.B, size int, write bool) {
	benchDuo(b, newDuo(b, size), write)
}

func benchDuo(b *testing.B, d *duo, write bool) {
	for range 300 {
		d.run(write)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(d.buf)))
	for b.Loop() {
		d.run(write)
	}
}

// The fabric's own copies are part of these: they measure what the two datamovers add.
func BenchmarkRead4K(b *testing.B)    { benchIO(b, 4096, false) }
func BenchmarkWrite4K(b *testing.B)   { benchIO(b, 4096, true) }
func BenchmarkRead128K(b *testing.B)  { benchIO(b, 128<<10, false) }
func BenchmarkWrite128K(b *testing.B) { benchIO(b, 128<<10, true) }
