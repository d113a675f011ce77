package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Initiator ports of these tests, and keys that differ in one half only (PR-04).
const (
	portA = "iqn.2026-01.test:a,i,0x00023d000001"
	portB = "iqn.2026-01.test:b,i,0x00023d000002"
	portC = "iqn.2026-01.test:c,i,0x00023d000003"

	keyA = 0x0123456789abcdef
	keyB = 0xffffffff00000001
	keyC = 0x0000000000000001
)

// trio is three nexuses of one unit. Their unit attentions are taken.
func trio(t testing.TB) (a, b, c *bench) {
	x := newBench(t, newMemory(1<<20))
	return x.peer(portA, 1), x.peer(portB, 1), x.peer(portC, 2)
}

// list makes the parameter list of all but REGISTER AND MOVE.
func list(key, newKey uint64, flags byte, ids ...byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, key)
	b = binary.BigEndian.AppendUint64(b, newKey)
	b = append(b, 0, 0, 0, 0, flags, 0, 0, 0)
	if flags&prSpecIPT != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(ids)))
		b = append(b, ids...)
	}
	return b
}

// out sends PERSISTENT RESERVE OUT and gives its status, or its sense.
func (b *bench) out(action int, kind reservationKind, param []byte) string {
	return answer(b.outTask(action, kind, param))
}

func (b *bench) outTask(action int, kind reservationKind, param []byte) *result {
	cdb := []byte{0x5f, byte(action), byte(kind), 0, 0, 0, 0, byte(len(param) >> 8), byte(len(param)), 0}
	return b.run(0, cdb, 0, param)
}

func answer(r *result) string {
	switch r.Status {
	case Good:
		return "good"
	case ReservationConflict:
		return "conflict"
	case Busy:
		return "busy"
	}
	return r.sense()
}

func (b *bench) in(action byte) []byte {
	return b.run(0, []byte{0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0}, 4096, nil).data
}

func (b *bench) register(key uint64) {
	b.t.Helper()
	require.Equal(b.t, "good", b.out(prRegisterAndIgnore, 0, list(0, key, 0)))
}

// attentions takes what is pending.
func (b *bench) attentions() string {
	var all []string
	for s := b.ready(0); strings.HasPrefix(s, "6/"); s = b.ready(0) {
		all = append(all, strings.TrimPrefix(s, "6/"))
	}
	return strings.Join(all, " ")
}

func TestPersistentReserveInBytes(t *testing.T) {
	a, b, c := trio(t)
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadKeys))
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadReservation))
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadFullStatus))
	a.register(keyA)
	b.register(keyB)
	c.register(keyB)
	require.Equal(t, "good", a.out(prReserve, writeExclusiveRegistrantsOnly, list(keyA, 0, 0)))
	assert.Equal(t, golden(t, "00000003 00000018 0123456789abcdef ffffffff00000001 ffffffff00000001"), b.in(prReadKeys))
	assert.Equal(t, golden(t, "00000003 00000010 0123456789abcdef 00000000 00 05 0000"), b.in(prReadReservation))
	assert.Equal(t, golden(t, `00000003 000000c0
		0123456789abcdef 00000000 01 05 00000000 0001 00000028
		45 00 0024 69716e2e 32303236 2d30312e 74657374 3a612c69 2c307830 30303233 64303030 30303100
		ffffffff00000001 00000000 00 00 00000000 0001 00000028
		45 00 0024 69716e2e 32303236 2d30312e 74657374 3a622c69 2c307830 30303233 64303030 30303200
		ffffffff00000001 00000000 00 00 00000000 0002 00000028
		45 00 0024 69716e2e 32303236 2d30312e 74657374 3a632c69 2c307830 30303233 64303030 30303300`), c.in(prReadFullStatus))
	assert.Equal(t, golden(t, "0008 1c c0 ea01 0000"), a.in(prReportCapabilities), "no APTPL without a place to keep it")

	require.Equal(t, "good", a.out(prRelease, writeExclusiveRegistrantsOnly, list(keyA, 0, 0)))
	require.Equal(t, "2a/04", b.attentions())
	require.Equal(t, "good", b.out(prReserve, exclusiveAccessAllRegistrants, list(keyB, 0, 0)))
	assert.Equal(t, golden(t, "00000003 00000010 0000000000000000 00000000 00 08 0000"), b.in(prReadReservation))
	// An allocation length cuts, and ADDITIONAL LENGTH stays.
	cut := a.run(0, []byte{0x5e, 0, 0, 0, 0, 0, 0, 0, 10, 0}, 10, nil).data
	assert.Equal(t, golden(t, "00000003 00000018 0123"), cut)
}

// PR-04: parameter lists of every wrong length, and before anything has changed.
func TestPersistentReserveOutListLengths(t *testing.T) {
	a, _, _ := trio(t)
	a.register(keyA)
	full := append(list(keyA, keyB, 0), make([]byte, maxPersistentOut)...)
	for _, n := range []int{0, 1, 8, 16, 23, 25, 28, 48, maxPersistentOut, maxPersistentOut + 1, 65535} {
		data := full[:min(n, len(full))]
		cdb := []byte{0x5f, prRegister, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0}
		assert.Equal(t, "5/1a/00", a.run(0, cdb, 0, data).sense(), "%d bytes", n)
	}
	cdb := []byte{0x5f, prRegister, 0, 0, 0, 0, 0, 0, 24, 0}
	for n := range 24 {
		assert.Equal(t, "5/1a/00", a.run(0, cdb, 0, full[:n]).sense(), "%d bytes sent of 24", n)
	}
	cdb[5] = 0xff
	assert.Equal(t, "5/1a/00", a.run(0, cdb, 0, full[:24]).sense())
	assert.Equal(t, golden(t, "00000001 00000008 0123456789abcdef"), a.in(prReadKeys))
}

// PR-04: keys are compared in all 8 bytes.
func TestKeysAreExact(t *testing.T) {
	a, b, _ := trio(t)
	a.register(keyA)
	for _, wrong := range []uint64{0, keyA & 0xffffffff, keyA &^ 0xffffffff, keyA ^ 1, keyA ^ 1<<63} {
		for action := prRegister; action <= prRegisterAndMove; action++ {
			if action == prRegisterAndIgnore {
				continue
			}
			assert.Equal(t, "conflict", a.out(action, writeExclusive, moveList(wrong, keyB, 0, 1, portB)[:24+40*(action/7)]), "action %d key %x", action, wrong)
		}
	}
	assert.Equal(t, "conflict", b.out(prRegister, 0, list(keyA, keyB, 0)), "an unregistered nexus has no key to show")
	assert.Equal(t, "good", b.out(prRegister, 0, list(0, 0, 0)), "nothing to do")
	assert.Equal(t, golden(t, "00000001 00000008 0123456789abcdef"), a.in(prReadKeys))
}

func TestReservationAndItsEnd(t *testing.T) {
	for _, kind := range []reservationKind{1, 3, 5, 6, 7, 8} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			a, b, c := trio(t)
			a.register(keyA)
			b.register(keyB)
			require.Equal(t, "conflict", c.out(prReserve, kind, list(0, 0, 0)), "not registered")
			require.Equal(t, "good", a.out(prReserve, kind, list(keyA, 0, 0)))
			require.Equal(t, "good", a.out(prReserve, kind, list(keyA, 0, 0)), "again")
			other := kind%8 + 1
			for ; !other.valid(); other++ {
			}
			assert.Equal(t, "conflict", a.out(prReserve, other, list(keyA, 0, 0)))
			fromB := "conflict"
			if kind >= 7 {
				fromB = "good"
			}
			assert.Equal(t, fromB, b.out(prReserve, kind, list(keyB, 0, 0)))
			if kind < 7 {
				assert.Equal(t, "good", b.out(prRelease, kind, list(keyB, 0, 0)), "no holder: nothing happens")
				assert.Equal(t, "good", b.out(prRelease, other, list(keyB, 0, 0)))
			}
			assert.Equal(t, "5/26/04", a.out(prRelease, other, list(keyA, 0, 0)))
			assert.Equal(t, "5/26/04", a.out(prRelease, kind|0x10, list(keyA, 0, 0)), "scope")
			assert.NotEqual(t, 8, len(a.in(prReadReservation)))
			require.Equal(t, "good", a.out(prRelease, kind, list(keyA, 0, 0)))
			assert.Len(t, a.in(prReadReservation), 8)
			told := "2a/04"
			if kind < 5 {
				told = ""
			}
			assert.Equal(t, []string{"", told, ""}, []string{a.attentions(), b.attentions(), c.attentions()}, "release")

			require.Equal(t, "good", a.out(prReserve, kind, list(keyA, 0, 0)))
			require.Equal(t, "good", a.out(prRegister, 0, list(keyA, 0, 0)), "the holder leaves")
			if kind >= 7 {
				assert.NotEqual(t, 8, len(a.in(prReadReservation)), "b holds it too")
				assert.Empty(t, b.attentions())
				require.Equal(t, "good", b.out(prRegister, 0, list(keyB, 0, 0)))
			} else {
				assert.Equal(t, told, b.attentions())
			}
			assert.Len(t, a.in(prReadReservation), 8)
			assert.Empty(t, a.attentions()+c.attentions())
		})
	}
	a, _, _ := trio(t)
	a.register(keyA)
	for _, bad := range []reservationKind{0, 2, 4, 9, 0xf, 0x11} {
		assert.Equal(t, "5/24/00", a.out(prReserve, bad, list(keyA, 0, 0)), "type %x", bad)
	}
}

func TestClear(t *testing.T) {
	a, b, c := trio(t)
	a.register(keyA)
	b.register(keyB)
	require.Equal(t, "good", a.out(prReserve, exclusiveAccess, list(keyA, 0, 0)))
	require.Equal(t, "conflict", c.out(prClear, 0, list(0, 0, 0)))
	require.Equal(t, "good", b.out(prClear, 0, list(keyB, 0, 0)))
	assert.Equal(t, golden(t, "00000003 00000000"), b.in(prReadKeys))
	assert.Len(t, b.in(prReadReservation), 8)
	assert.Equal(t, []string{"2a/03", "", ""}, []string{a.attentions(), b.attentions(), c.attentions()})
}

// PR-04: PREEMPT of a key, of the holder, of all registrants with key 0, and of an unknown key.
func TestPreempt(t *testing.T) {
	for _, c := range []struct {
		name       string
		kind       reservationKind // A's reservation; 0: none
		key        uint64          // preempted by B
		want       string
		keys       []uint64 // left
		holder     uint64   // left; 0: no reservation, or all registrants
		attA, attC string
		as         reservationKind // of the PREEMPT
		typeNow    reservationKind
		abortA     bool
	}{
		{name: "a registration", key: keyC, want: "good", keys: []uint64{keyA, keyB}, attC: "2a/05", as: 0xf},
		{name: "a registration beside a reservation", kind: 1, key: keyC, want: "good", keys: []uint64{keyA, keyB}, holder: keyA, attC: "2a/05", as: 0xf, typeNow: 1},
		{name: "the holder", kind: 5, key: keyA, want: "good", keys: []uint64{keyB, keyC}, holder: keyB, attA: "2a/05", as: 5, typeNow: 5, abortA: true},
		{name: "the holder, another type", kind: 5, key: keyA, want: "good", keys: []uint64{keyB, keyC}, holder: keyB, attA: "2a/05", attC: "2a/04", as: 3, typeNow: 3, abortA: true},
		{name: "the holder, no type", kind: 5, key: keyA, want: "5/24/00", keys: []uint64{keyA, keyB, keyC}, holder: keyA, as: 2, typeNow: 5},
		{name: "all registrants", kind: 7, key: 0, want: "good", keys: []uint64{keyB}, holder: keyB, attA: "2a/05", attC: "2a/05", as: 3, typeNow: 3, abortA: true},
		{name: "one of all registrants", kind: 8, key: keyA, want: "good", keys: []uint64{keyB, keyC}, attA: "2a/05", as: 3, typeNow: 8, abortA: true},
		{name: "an unknown key", kind: 5, key: 42, want: "conflict", keys: []uint64{keyA, keyB, keyC}, holder: keyA, as: 5, typeNow: 5},
		{name: "half a key", kind: 5, key: keyA & 0xffffffff, want: "conflict", keys: []uint64{keyA, keyB, keyC}, holder: keyA, as: 5, typeNow: 5},
		{name: "key 0", kind: 5, key: 0, want: "5/26/00", keys: []uint64{keyA, keyB, keyC}, holder: keyA, as: 5, typeNow: 5},
		{name: "the sender's own key", kind: 5, key: keyB, want: "good", keys: []uint64{keyA, keyC}, holder: keyA, as: 5, typeNow: 5},
	} {
		for _, action := range []int{prPreempt, prPreemptAndAbort} {
			t.Run(fmt.Sprint(c.name, action), func(t *testing.T) {
				a, b, x := trio(t)
				a.register(keyA)
				b.register(keyB)
				x.register(keyC)
				if c.kind != 0 {
					require.Equal(t, "good", a.out(prReserve, c.kind, list(keyA, 0, 0)))
				}
				r := b.outTask(action, c.as, list(keyB, c.key, 0))
				require.Equal(t, c.want, answer(r))
				generation := uint32(3)
				if c.want == "good" {
					generation++
				}
				want := binary.BigEndian.AppendUint32(nil, generation)
				want = binary.BigEndian.AppendUint32(want, uint32(8*len(c.keys)))
				for _, k := range c.keys {
					want = binary.BigEndian.AppendUint64(want, k)
				}
				assert.Equal(t, want, b.in(prReadKeys))
				now := b.in(prReadReservation)
				if c.typeNow == 0 {
					assert.Len(t, now, 8)
				} else {
					assert.Equal(t, c.holder, binary.BigEndian.Uint64(now[8:]))
					assert.Equal(t, byte(c.typeNow), now[21])
				}
				aborts := action == prPreemptAndAbort
				assert.Equal(t, aborts && c.abortA, slices.Contains(r.Preempted, a.nexus))
				assert.Equal(t, aborts && (c.attC == "2a/05"), slices.Contains(r.Preempted, x.nexus))
				assert.Equal(t, aborts && c.want == "good" && (c.key == keyB || c.key == 0), slices.Contains(r.Preempted, b.nexus))
				assert.Equal(t, []string{c.attA, "", c.attC}, []string{a.attentions(), b.attentions(), x.attentions()})
			})
		}
	}
}

// A holder that preempts its own key changes the type, and loses no registration (SPC-4, 5.12.11.2.4).
func TestPreemptOfOneself(t *testing.T) {
	a, b, _ := trio(t)
	a.register(keyA)
	b.register(keyB)
	require.Equal(t, "good", a.out(prReserve, writeExclusive, list(keyA, 0, 0)))
	r := a.outTask(prPreemptAndAbort, exclusiveAccess, list(keyA, keyA, 0))
	require.Equal(t, Good, r.Status)
	assert.Equal(t, []*Nexus{a.nexus}, r.Preempted)
	assert.Equal(t, byte(exclusiveAccess), a.in(prReadReservation)[21])
	assert.Equal(t, []string{"", "2a/04"}, []string{a.attentions(), b.attentions()})

	// Of all registrants the last one has gone, and the reservation with it.
	require.Equal(t, "good", b.out(prClear, 0, list(keyB, 0, 0)))
	a.attentions()
	a.register(keyA)
	require.Equal(t, "good", a.out(prReserve, writeExclusiveAllRegistrants, list(keyA, 0, 0)))
	require.Equal(t, "good", a.out(prPreempt, writeExclusive, list(keyA, keyA, 0)))
	assert.Len(t, a.in(prReadKeys), 8)
	assert.Len(t, a.in(prReadReservation), 8)
}

// moveList is the parameter list of REGISTER AND MOVE.
func moveList(key, newKey uint64, flags byte, port uint16, to string) []byte {
	b := binary.BigEndian.AppendUint64(nil, key)
	b = binary.BigEndian.AppendUint64(b, newKey)
	b = append(b, 0, flags)
	b = binary.BigEndian.AppendUint16(b, port)
	id := appendTransportID(nil, to)
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	return append(b, id...)
}

func TestRegisterAndMove(t *testing.T) {
	move := func(b *bench, param []byte) string { return b.out(prRegisterAndMove, 0, param) }
	a, b, c := trio(t)
	a.register(keyA)
	assert.Equal(t, "5/24/00", move(a, moveList(keyA, keyC, 0, 2, portC)), "no reservation")
	assert.Equal(t, "conflict", move(a, moveList(keyB, keyC, 0, 2, portC)), "no reservation, and the key is wrong")
	require.Equal(t, "good", a.out(prReserve, exclusiveAccessAllRegistrants, list(keyA, 0, 0)))
	assert.Equal(t, "conflict", move(a, moveList(keyA, keyC, 0, 2, portC)), "all registrants")
	require.Equal(t, "good", a.out(prRelease, exclusiveAccessAllRegistrants, list(keyA, 0, 0)))
	require.Equal(t, "good", a.out(prReserve, writeExclusive, list(keyA, 0, 0)))
	b.register(keyB)
	assert.Equal(t, "conflict", move(b, moveList(keyB, keyC, 0, 2, portC)), "not the holder")
	good := moveList(keyA, keyC, 0, 2, portC)
	for what, bad := range map[string][]byte{
		"5/26/00 key 0":      moveList(keyA, 0, 0, 2, portC),
		"5/26/00 itself":     moveList(keyA, keyC, 0, 1, portA),
		"5/26/00 its port 2": moveList(keyA, keyC, 0, 2, portA),
		"5/26/00 no port":    moveList(keyA, keyC, 0, 9, portC),
		"5/26/00 no ISID":    moveList(keyA, keyC, 0, 2, "iqn.2026-01.test:c"),
		"5/26/00 APTPL":      moveList(keyA, keyC, prAPTPL, 2, portC),
		"5/26/00 nobody":     moveList(keyA, keyC, 0, 2, portC)[: 24-4 : 24-4],
		"5/1a/00 too long":   append(slices.Clone(good), 0, 0, 0, 0),
		"5/1a/00 too short":  good[:len(good)-4],
		"5/26/00 ID and ISD": moveList(keyA, keyC, 0, 2, portC+"0"),
	} {
		if what == "5/26/00 nobody" {
			bad = append(bad, 0, 0, 0, 0)
		}
		assert.Equal(t, what[:7], move(a, bad), what)
	}
	require.Equal(t, "good", move(a, good))
	assert.Equal(t, golden(t, "00000003 00000018 0123456789abcdef ffffffff00000001 0000000000000001"), a.in(prReadKeys))
	assert.Equal(t, golden(t, "00000003 00000010 0000000000000001 00000000 00 01 0000"), a.in(prReadReservation))
	assert.Equal(t, ReservationConflict, a.status(cdb10(0x2a, 0, 0, 0)...))
	assert.Equal(t, Good, c.status(cdb10(0x2a, 0, 0, 0)...))
	// Back to A, which has a registration already, and C leaves.
	require.Equal(t, "good", move(c, moveList(keyC, keyA+1, prMoveUnreg, 1, strings.Replace(portA, "iqn", "IQN", 1))))
	assert.Equal(t, golden(t, "00000004 00000010 0123456789abcdf0 ffffffff00000001"), a.in(prReadKeys))
	assert.Equal(t, Good, a.status(cdb10(0x2a, 0, 0, 0)...))
	assert.Equal(t, "", a.attentions()+b.attentions()+c.attentions())
}

func TestSpecifyInitiatorPorts(t *testing.T) {
	a, b, c := trio(t)
	ids := appendTransportID(appendTransportID(nil, portB), "iqn.2026-01.test:absent,i,0x000000000000")
	register := func(ids []byte) string { return a.out(prRegister, 0, list(0, keyA, prSpecIPT, ids...)) }
	for n := range ids {
		if n == 0 || n == len(appendTransportID(nil, portB)) {
			continue
		}
		assert.Equal(t, "5/26/00", register(ids[:n]), "first %d bytes of TransportIDs", n)
	}
	long := list(0, keyA, prSpecIPT, ids...)
	long[27]++
	assert.Equal(t, "5/1a/00", a.out(prRegister, 0, long))
	assert.Equal(t, "5/1a/00", a.out(prRegister, 0, list(0, keyA, prSpecIPT)[:24]))
	assert.Equal(t, "5/26/00", a.out(prRegisterAndIgnore, 0, list(0, keyA, prSpecIPT, ids...)))
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadKeys), "all or nothing")

	b.register(keyB)
	assert.Equal(t, "5/26/00", register(ids), "who has registered by himself (SPC-4, table 67)")
	assert.Equal(t, golden(t, "00000001 00000008 ffffffff00000001"), a.in(prReadKeys))
	b.register(0)
	require.Equal(t, "good", register(append(ids, ids...)), "one is named twice")
	assert.Equal(t, golden(t, "00000003 00000018 0123456789abcdef 0123456789abcdef 0123456789abcdef"), a.in(prReadKeys))
	absent := a.peer("iqn.2026-01.test:absent,i,0x000000000000", 1)
	assert.Equal(t, "good", absent.out(prReserve, 5, list(keyA, 0, 0)), "registered before it has logged in")
	assert.Equal(t, "5/26/00", a.out(prRegister, 0, list(keyA, keyA, prSpecIPT, ids...)), "SPEC_I_PT of a registered nexus")

	// A name without ISID is every port of it that is known, through the port of the command.
	b.register(0)
	require.Equal(t, "5/26/00", c.out(prRegister, 0, list(0, keyC, prSpecIPT, appendTransportID(nil, "iqn.2026-01.test:nobody")...)))
	require.Equal(t, "good", c.out(prRegister, 0, list(0, keyC, prSpecIPT, appendTransportID(nil, "IQN.2026-01.test:b")...)))
	assert.Equal(t, "conflict", b.out(prReserve, 5, list(keyC, 0, 0)), "b came through port 1")
	through2 := b.peer(portB, 2)
	assert.Equal(t, "conflict", through2.out(prReserve, 1, list(keyC, 0, 0)), "registered; but reserved as type 5")
	assert.Equal(t, Good, through2.status(cdb10(0x2a, 0, 0, 0)...))
}

func TestAllTargetPorts(t *testing.T) {
	a, b, c := trio(t)
	a3 := a.peer(portA, 3)
	require.Equal(t, "good", a.out(prRegister, 0, list(0, keyA, prAllTgPt)))
	assert.Equal(t, golden(t, "00000001 00000018 0123456789abcdef 0123456789abcdef 0123456789abcdef"), a.in(prReadKeys))
	a2 := a.peer(portA, 2)
	require.Equal(t, "good", a2.out(prReserve, 6, list(keyA, 0, 0)))
	b.register(keyB)
	require.Equal(t, "good", a.out(prRegister, 0, list(keyA, 0, prAllTgPt)))
	assert.Equal(t, golden(t, "00000003 00000008 ffffffff00000001"), a.in(prReadKeys))
	assert.Len(t, a.in(prReadReservation), 8, "its holder has left through the other port")
	assert.Empty(t, a3.attentions()+a2.attentions(), "registered no more")
	assert.Equal(t, []string{"", "2a/04", ""}, []string{a.attentions(), b.attentions(), c.attentions()})
}

func TestRegistrationsAreBounded(t *testing.T) {
	a, b, _ := trio(t)
	for i := range maxRegistrants {
		n := b.d.Attach(NexusConfig{Initiator: fmt.Sprintf("i%d", i), RelativePort: 1})
		p := &bench{t: t, d: b.d, nexus: n}
		p.ready(0)
		p.register(keyB)
	}
	assert.Equal(t, "5/55/04", a.out(prRegister, 0, list(0, keyA, 0)))
	b.d.Detach(b.nexus)
	assert.Len(t, a.in(prReadKeys), 8+8*maxRegistrants)
}

// A registration belongs to the ports' names: it outlives the session.
func TestRegistrationOutlivesTheNexus(t *testing.T) {
	a, b, _ := trio(t)
	a.register(keyA)
	require.Equal(t, "good", a.out(prReserve, exclusiveAccess, list(keyA, 0, 0)))
	a.d.Detach(a.nexus)
	assert.Equal(t, ReservationConflict, b.status(cdb10(0x28, 0, 0, 0)...))
	back := a.peer(portA, 1)
	assert.Equal(t, Good, back.status(cdb10(0x28, 0, 0, 0)...))
	otherPort := a.peer(portA, 2)
	assert.Equal(t, ReservationConflict, otherPort.status(cdb10(0x28, 0, 0, 0)...), "another nexus")
	a.d.ResetLU(0, nil)
	back.attentions()
	assert.Equal(t, "good", back.out(prRelease, exclusiveAccess, list(keyA, 0, 0)), "a reset keeps it")
}

// PR-06: RESERVE and RELEASE beside registrations (CRH), and PERSISTENT RESERVE beside RESERVE.
func TestReserveBesideRegistrations(t *testing.T) {
	for _, kind := range []reservationKind{0, 1, 3, 5, 6, 7, 8} {
		a, b, c := trio(t)
		a.register(keyA)
		b.register(keyB)
		if kind != 0 {
			require.Equal(t, "good", a.out(prReserve, kind, list(keyA, 0, 0)))
		}
		for _, cdb := range [][]byte{reserve6, release6, reserve10, release10} {
			want := func(does bool) Status {
				if does {
					return Good
				}
				return ReservationConflict
			}
			assert.Equal(t, want(kind != 0), a.status(cdb...), "holder, type %d", kind)
			assert.Equal(t, want(kind >= 5), b.status(cdb...), "registered, type %d", kind)
			assert.Equal(t, ReservationConflict, c.status(cdb...), "not registered, type %d", kind)
		}
		assert.Equal(t, "good", c.out(prRegister, 0, list(0, keyC, 0)), "nothing was reserved")
	}
	a, b, _ := trio(t)
	require.Equal(t, Good, a.status(reserve6...))
	for _, x := range []*bench{a, b} {
		assert.Equal(t, "conflict", x.out(prRegister, 0, list(0, keyA, 0)))
		assert.Equal(t, ReservationConflict, x.status(0x5e, 0, 0, 0, 0, 0, 0, 0, 0, 0))
	}
	assert.Equal(t, Good, b.status(reportLUNs...))
	assert.Equal(t, ReservationConflict, b.status(testReady...))
}

// keeper is a StateKeeper in memory.
type keeper struct {
	mu    sync.Mutex
	saved map[string][]byte
	err   error
	hold  chan struct{} // Save waits for it to be closed
	begun chan struct{}
}

func (k *keeper) Load(name string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saved[name], k.err
}

func (k *keeper) Save(name string, state []byte) error {
	if k.hold != nil {
		k.begun <- struct{}{}
		<-k.hold
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	if k.saved == nil {
		k.saved = map[string][]byte{}
	}
	k.saved[name] = bytes.Clone(state)
	return nil
}

func kept(t testing.TB, k *keeper) *bench {
	d := NewDevice(DeviceConfig{Name: "iqn.2026-01.test:x", State: k})
	lu, err := d.Add(0, newMemory(1<<20), LUConfig{ID: "unit 0"})
	require.NoError(t, err)
	return (&bench{t: t, d: d, lu: lu}).peer(portA, 1)
}

// PR-03: what was registered with APTPL is there after a restart, and nothing else.
func TestReservationsSurviveWithAPTPL(t *testing.T) {
	k := &keeper{}
	a := kept(t, k)
	b := a.peer(portB, 2)
	assert.Equal(t, golden(t, "0008 1d c0 ea01 0000"), a.in(prReportCapabilities))
	require.Equal(t, "good", a.out(prRegister, 0, list(0, keyA, prAPTPL)))
	assert.Equal(t, golden(t, "0008 1d c1 ea01 0000"), a.in(prReportCapabilities))
	require.Equal(t, "good", b.out(prRegister, 0, list(0, keyB, prAPTPL)))
	require.Equal(t, "good", b.out(prReserve, exclusiveAccessRegistrantsOnly, list(keyB, 0, 0)))
	before := b.in(prReadFullStatus)[4:]
	assert.JSONEq(t, `{"version":1,"type":6,"holder":{"initiator":"`+portB+`","port":2},"registrants":[
		{"initiator":"`+portA+`","port":1,"key":"0123456789abcdef"},{"initiator":"`+portB+`","port":2,"key":"ffffffff00000001"}]}`,
		string(k.saved[a.lu.serial()]))

	a = kept(t, k)
	b = a.peer(portB, 2)
	c := a.peer(portC, 1)
	assert.Equal(t, before, b.in(prReadFullStatus)[4:])
	assert.Equal(t, golden(t, "00000000"), b.in(prReadFullStatus)[:4], "PRGENERATION starts again")
	assert.Equal(t, golden(t, "0008 1d c1 ea01 0000"), a.in(prReportCapabilities))
	assert.Equal(t, ReservationConflict, c.status(cdb10(0x28, 0, 0, 0)...))
	assert.Equal(t, Good, b.status(cdb10(0x28, 0, 0, 0)...))

	// The last REGISTER decides: without APTPL nothing is left to come back.
	require.Equal(t, "good", a.out(prRegister, 0, list(keyA, keyA, 0)))
	assert.Empty(t, k.saved[a.lu.serial()])
	a = kept(t, k)
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadKeys))
}

// Every change of a unit with APTPL is saved before its answer.
func TestEveryChangeIsSaved(t *testing.T) {
	k := &keeper{}
	a := kept(t, k)
	b := a.peer(portB, 1)
	a.register(keyA)
	assert.Empty(t, k.saved, "no APTPL, nothing saved")
	step := func(x *bench, action int, kind reservationKind, param []byte) {
		t.Helper()
		require.Equal(t, "good", x.out(action, kind, param))
		again := kept(t, k)
		assert.Equal(t, x.in(prReadFullStatus)[4:], again.in(prReadFullStatus)[4:])
	}
	step(a, prRegister, 0, list(keyA, keyA, prAPTPL))
	step(a, prReserve, 5, list(keyA, 0, 0))
	step(b, prRegister, 0, list(0, keyB, prAPTPL))
	step(b, prPreempt, 6, list(keyB, keyA, 0))
	b.attentions()
	step(b, prRegisterAndMove, 0, moveList(keyB, keyC, prAPTPL|prMoveUnreg, 1, portA))
	a.attentions()
	step(a, prRelease, 6, list(keyC, 0, 0))
	step(a, prClear, 0, list(keyC, 0, 0))
	assert.NotEmpty(t, k.saved[a.lu.serial()], "that nothing is registered is kept too")
}

// A change that cannot be made durable does not happen; until it is, nobody sees it.
func TestAPTPLIsAnsweredWhenDurable(t *testing.T) {
	k := &keeper{}
	a := kept(t, k)
	b := a.peer(portB, 1)
	require.Equal(t, "good", a.out(prRegister, 0, list(0, keyA, prAPTPL)))
	k.err = errors.New("disk on fire")
	assert.Equal(t, "4/44/00", a.out(prReserve, exclusiveAccess, list(keyA, 0, 0)))
	assert.Len(t, a.in(prReadReservation), 8)
	assert.Equal(t, Good, b.status(cdb10(0x2a, 0, 0, 0)...))

	k.err, k.hold, k.begun = nil, make(chan struct{}), make(chan struct{})
	done := make(chan string)
	go func() { done <- a.out(prReserve, exclusiveAccess, list(keyA, 0, 0)) }()
	<-k.begun
	assert.Equal(t, Good, b.status(cdb10(0x2a, 0, 0, 0)...))
	assert.Equal(t, Busy, b.status(reserve6...), "between the two nobody gets in")
	close(k.hold)
	require.Equal(t, "good", <-done)
	assert.Equal(t, ReservationConflict, b.status(cdb10(0x2a, 0, 0, 0)...))
	assert.Equal(t, ReservationConflict, b.status(reserve6...))
}

func TestAPTPLIsRefusedWithoutAKeeper(t *testing.T) {
	a, _, _ := trio(t)
	for _, action := range []int{prRegister, prRegisterAndIgnore} {
		r := a.outTask(action, 0, list(0, keyA, prAPTPL))
		assert.Equal(t, golden(t, "70 00 05 00000000 0a 00000000 26 00 00 880014"), r.Sense())
	}
	assert.Equal(t, golden(t, "00000000 00000000"), a.in(prReadKeys))
}

func TestDamagedReservationsAreReported(t *testing.T) {
	good := `{"version":1,"type":5,"holder":{"initiator":"a","port":1},"registrants":[{"initiator":"a","port":1,"key":"0000000000000001"}]}`
	_, err := decodeRegistry([]byte(good))
	require.NoError(t, err)
	for n := range len(good) {
		_, err := decodeRegistry([]byte(good[:n]))
		assert.Error(t, err, good[:n])
	}
	for _, c := range [][2]string{
		{`"version":1`, `"version":2`},
		{`"type":5`, `"type":2`},
		{`"type":5`, `"type":0`},
		{`"type":5`, `"type":7`},
		{`"type":5`, `"kind":5`},
		{`"holder":{"initiator":"a","port":1},`, ``},
		{`"initiator":"a","port":1}`, `"initiator":"b","port":1}`},
		{`"key":"0000000000000001"`, `"key":"0000000000000000"`},
		{`"key":"0000000000000001"`, `"key":"1"`},
		{`]}`, `]} x`},
		{`"registrants":[`, `"registrants":[{"initiator":"a","port":1,"key":"0000000000000001"},`},
	} {
		bad := strings.Replace(good, c[0], c[1], 1)
		require.NotEqual(t, good, bad)
		_, err := decodeRegistry([]byte(bad))
		assert.Error(t, err, bad)
		k := &keeper{saved: map[string][]byte{(&LogicalUnit{}).serial(): nil}}
		d := NewDevice(DeviceConfig{State: k})
		lu, err := newLogicalUnit(d, 0, newMemory(4096), LUConfig{ID: "x"})
		require.NoError(t, err)
		k.saved[lu.serial()] = []byte(bad)
		_, err = d.Add(0, newMemory(4096), LUConfig{ID: "x"})
		assert.ErrorContains(t, err, "lun 0: reservations of unit "+lu.serial())
	}
	_, err = NewDevice(DeviceConfig{State: &keeper{err: errors.New("no disk")}}).Add(0, newMemory(4096), LUConfig{ID: "x"})
	assert.ErrorContains(t, err, "lun 0: reservations: no disk")
}

func TestTransportIDBytes(t *testing.T) {
	short := golden(t, "05 00 0014 69716e2e 78000000 00000000 00000000 00000000")
	assert.Equal(t, short, appendTransportID(nil, "iqn.x"))
	id, n, ok := parseTransportID(append(short, 1, 2, 3))
	assert.True(t, ok)
	assert.Equal(t, portID{name: "iqn.x"}, id)
	assert.Equal(t, 24, n)
	full := appendTransportID(nil, portA)
	id, n, ok = parseTransportID(full)
	assert.True(t, ok)
	assert.Equal(t, portA, id.port())
	assert.Equal(t, len(full), n)
	for i := range full {
		_, _, ok := parseTransportID(full[:i])
		assert.False(t, ok, "first %d bytes", i)
	}
	for what, bad := range map[string][]byte{
		"another protocol": append([]byte{0x46}, full[1:]...),
		"another format":   append([]byte{0x85}, full[1:]...),
		"no end":           bytes.ReplaceAll(full, []byte{0}, []byte{'0'}),
		"no ISID":          append([]byte{0x45}, short[1:]...),
		"no name":          append([]byte{0x05, 0, 0, 20}, make([]byte, 20)...),
		"ISID too long":    appendTransportID(nil, portA+"0"),
		"ISID not hex":     appendTransportID(nil, portA[:len(portA)-1]+"g"),
		"name with space":  appendTransportID(nil, "iqn.x y"),
		"not 4 bytes":      golden(t, "05 00 0015 69716e2e 78000000 00000000 00000000 00000000 00"),
		"too short":        golden(t, "05 00 0010 69716e2e 78000000 00000000 00000000"),
		"name too long":    appendTransportID(nil, strings.Repeat("x", 224)),
	} {
		_, _, ok := parseTransportID(bad)
		assert.False(t, ok, what)
	}
}
