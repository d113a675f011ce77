package scsi

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// selectControl is a parameter list of MODE SELECT(6) with a Control page.
func selectControl(t testing.TB, control uint32) []byte {
	b := golden(t, "00000000 0a0a 00 10 00 00 0000 ffff 0000")
	putControl(b[6:], control)
	return b
}

func select6(list []byte) []byte  { return []byte{0x15, 0x10, 0, 0, byte(len(list)), 0} }
func select10(list []byte) []byte { return []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(list)), 0} }

func (b *bench) setControl(control uint32) {
	b.t.Helper()
	list := selectControl(b.t, control)
	require.Equal(b.t, Good, b.run(0, select6(list), 0, list).Status)
}

func (b *bench) controlPage() []byte {
	return b.run(0, []byte{0x1a, 8, 0x0a, 0, 255, 0}, 255, nil).data
}

// What MODE SENSE gave can be sent back, with what is changeable changed.
func TestModeSelectTakesWhatModeSenseGave(t *testing.T) {
	for name, c := range map[string]struct{ sense, sel []byte }{
		"6":            {[]byte{0x1a, 0, 0x3f, 0, 255, 0}, []byte{0x15, 0x10, 0, 0, 0, 0}},
		"6, DBD":       {[]byte{0x1a, 8, 0x3f, 0, 255, 0}, []byte{0x15, 0x10, 0, 0, 0, 0}},
		"10":           {[]byte{0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0}, []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}},
		"10, long LBA": {[]byte{0x5a, 0x10, 0x3f, 0, 0, 0, 0, 0, 255, 0}, []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newMemory(4096))
			other := b.peer("other", 1)
			page := b.run(0, c.sense, 255, nil).data
			c.sel[len(c.sel)-2] = byte(len(page))
			send := func() *result { return b.run(0, c.sel, 0, page) }
			require.Equal(t, Good, send().Status)
			assert.Empty(t, other.ready(0), "nothing has changed")

			at := bytes.Index(page, golden(t, "0a0a"))
			page[at+2], page[at+4] = 0x04, 0x08
			require.Equal(t, Good, send().Status)
			assert.Equal(t, "6/2a/01", other.ready(0))
			assert.Empty(t, other.ready(0)+b.ready(0))
			assert.Equal(t, golden(t, "0f 00 90 00 0a0a 04 10 08 00 0000 ffff 0000"), b.controlPage())
			defaults := b.run(0, []byte{0x1a, 8, 0x8a, 0, 255, 0}, 255, nil).data
			assert.Equal(t, golden(t, "0a0a 00 10 00 00 0000 ffff 0000"), defaults[4:])

			b.d.ResetLU(0, b.nexus)
			require.Equal(t, "29/03", b.attentions())
			assert.Equal(t, golden(t, "0f 00 10 00 0a0a 00 10 00 00 0000 ffff 0000"), b.controlPage())
		})
	}
}

func TestModeSelectRefusals(t *testing.T) {
	b := newBench(t, newMemory(4096))
	good := b.run(0, []byte{0x1a, 0, 0x0a, 0, 255, 0}, 255, nil).data
	long := b.run(0, []byte{0x5a, 0x10, 0x0a, 0, 0, 0, 0, 0, 255, 0}, 255, nil).data
	require.Equal(t, Good, b.run(0, select6(good), 0, good).Status)
	for n := 1; n < len(good); n++ {
		if n == 12 {
			continue // header and descriptor: no page
		}
		assert.Equal(t, "5/1a/00", b.run(0, select6(good[:n]), 0, good[:n]).sense(), "first %d bytes", n)
	}
	for n := range good {
		assert.Equal(t, "5/1a/00", b.run(0, select6(good), 0, good[:n]).sense(), "%d bytes sent", n)
	}
	refused := func(what string, cdb, list []byte, pointer string) {
		t.Helper()
		r := b.run(0, cdb, 0, list)
		require.NotNil(t, r.Sense(), what)
		assert.Equal(t, "5/26/00", r.sense(), what)
		assert.Equal(t, golden(t, pointer), r.Sense()[15:], what)
	}
	change := func(list []byte, at int, v byte) []byte {
		list = slices.Clone(list)
		list[at] = v
		return list
	}
	refused("medium type", select6(good), change(good, 1, 1), "8f 0001")
	refused("descriptor length", select6(good), change(good, 3, 16), "8f 0003")
	refused("capacity", select6(good), change(good, 7, 9), "8f 0004")
	refused("block length", select6(good), change(good, 10, 4), "8f 0009")
	refused("subpage format", select6(good), change(good, 12, 0x4a), "8d 000c")
	refused("unknown page", select6(good), change(good, 12, 0x02), "8d 000c")
	refused("page length", select6(good), change(good, 13, 9), "8f 000d")
	refused("TST", select6(good), change(good, 14, 0x20), "8d 000e")
	refused("QUEUE ALGORITHM MODIFIER", select6(good), change(good, 15, 0), "8c 000f")
	refused("medium type", select10(long), change(long, 2, 1), "8f 0002")
	refused("descriptor length", select10(long), change(long, 7, 8), "8f 0006")
	refused("capacity", select10(long), change(long, 15, 9), "8f 0008")
	refused("block length", select10(long), change(long, 22, 4), "8f 0014")
	// A list with a mistake at its end changes nothing.
	b.setControl(0)
	both := append(selectControl(t, controlSWP), golden(t, "0812 04")...)
	both = append(both, make([]byte, 17)...)
	refused("WCE", select6(both), both, "8a 0012")
	assert.Zero(t, b.lu.control.Load())
	for _, ok := range [][2]byte{{7, 0}, {10, 2}} {
		list := change(good, int(ok[0]), ok[1])
		assert.Equal(t, Good, b.run(0, select6(list), 0, list).Status)
	}
	full := slices.Concat(good[:4], []byte{0xff, 0xff, 0xff, 0xff}, good[8:])
	assert.Equal(t, Good, b.run(0, select6(full), 0, full).Status)

	assert.Equal(t, Good, b.run(0, []byte{0x15, 0, 0, 0, 0, 0}, 0, nil).Status, "no list")
	assert.Equal(t, "5/24/00", b.run(0, []byte{0x15, 0x11, 0, 0, 16, 0}, 0, make([]byte, 16)).sense(), "SP")
	assert.Equal(t, "5/24/00", b.run(0, []byte{0x15, 0x00, 0, 0, 16, 0}, 0, make([]byte, 16)).sense(), "PF")
	assert.Equal(t, "5/1a/00", b.run(0, []byte{0x55, 0x10, 0, 0, 0, 0, 0, 2, 1, 0}, 0, make([]byte, 513)).sense())
}

func TestSoftwareWriteProtect(t *testing.T) {
	m := newMemory(1 << 20)
	b := newBench(t, m)
	b.setControl(controlSWP)
	assert.Equal(t, byte(0x90), b.controlPage()[2], "WP")
	for _, cdb := range [][]byte{cdb10(0x2a, 0, 0, 1), cdb10(0x2e, 0, 0, 1), cdb16(0x8a, 0, 0, 1), {0x0a, 0, 0, 0, 1, 0}} {
		assert.Equal(t, "7/27/02", b.run(0, cdb, 0, blocksOf('x', 1)).sense(), "% x", cdb)
	}
	assert.Equal(t, make([]byte, 1<<20), m.b)
	assert.Equal(t, Good, b.run(0, cdb10(0x28, 0, 0, 1), 512, nil).Status)
	b.setControl(0)
	assert.Equal(t, Good, b.run(0, cdb10(0x2a, 0, 0, 1), 0, blocksOf('x', 1)).Status)
}

// D_SENSE: INFORMATION has 64 bits, where fixed format has no room for the LBA.
func TestDescriptorSense(t *testing.T) {
	m := newMemory(4096)
	m.info.SizeBytes = 1 << 50
	b := newBench(t, m)
	m.err = errors.New("bad sector")
	read := cdb16(0x88, 0, 1<<33, 1)
	assert.Equal(t, golden(t, "70 00 03 00000000 0a 00000000 11 00 00 000000"), b.run(0, read, 512, nil).Sense())
	b.setControl(controlDSense)
	assert.Equal(t, golden(t, "72 03 11 00 000000 0c 00 0a 80 00 0000000200000000"), b.run(0, read, 512, nil).Sense())
	assert.Equal(t, golden(t, "72 05 24 00 000000 08 02 06 0000 cf0002 00"), b.run(0, []byte{0x12, 0, 1, 0, 96, 0}, 96, nil).Sense())
	assert.Equal(t, golden(t, "70 00 00 00000000 0a 00000000 00 00 00 000000"), b.run(0, requestSense, 252, nil).data, "REQUEST SENSE has a bit of its own")
	assert.Equal(t, golden(t, "72 0b 0c 0d 00000000"), b.d.AppendSense(nil, 0, 0x0b, 0x0c, 0x0d), "the transport's")
	assert.Equal(t, golden(t, "70 00 0b 00000000 0a 00000000 0c 0d 00 000000"), b.d.AppendSense(nil, lunAt(1), 0x0b, 0x0c, 0x0d))
	assert.Equal(t, golden(t, "70 00 05 00000000 0a 00000000 25 00 00 000000"), b.run(lunAt(1), testReady, 0, nil).Sense(), "no unit, no mode page")
}
