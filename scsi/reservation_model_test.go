package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelNexuses are two initiator ports through two target ports: ALL_TG_PT joins 0 with 1, and 2 with 3.
var modelNexuses = [4]nexusName{{portA, 1}, {portA, 2}, {portB, 1}, {portB, 2}}

// A prModel is what SPC-4, 5.12, says of four nexuses, told as plainly as can be: keys by nexus (0: not
// registered), who holds which type, and what each has not been told yet.
type prModel struct {
	keys       [4]uint64
	kind       int
	holder     int // of types 1 to 6
	generation uint32
	told       [4]map[string]bool
}

func (m *prModel) holds(i int) bool {
	return m.kind != 0 && m.keys[i] != 0 && (m.kind >= 7 || m.holder == i)
}

func (m *prModel) tell(i, sender int, what string) {
	if i != sender {
		m.told[i][what] = true
	}
}

// unregister ends registrations. If the holder is among them those who still are registered learn that a
// reservation of registrants is gone; one that all hold goes with the last of them.
func (m *prModel) unregister(which []int, sender int) {
	released := m.kind != 0 && m.kind < 7 && slices.Contains(which, m.holder)
	for _, i := range which {
		m.keys[i] = 0
	}
	for j, k := range m.keys {
		if k != 0 && released && m.kind >= 5 {
			m.tell(j, sender, "2a/04")
		}
	}
	if released || m.keys == [4]uint64{} {
		m.kind = 0
	}
}

func modelTypeOK(kind int) bool { return strings.ContainsRune("135678", rune('0'+kind)) }

// out is PERSISTENT RESERVE OUT, but for REGISTER AND MOVE.
func (m *prModel) out(i, action, kind int, key, newKey uint64, both bool) string {
	if action == prRegister || action == prRegisterAndIgnore {
		return m.register(i, key, newKey, both, action == prRegisterAndIgnore)
	}
	if m.keys[i] == 0 || m.keys[i] != key {
		return "conflict"
	}
	switch action {
	case prReserve:
		switch {
		case m.kind == 0 && !modelTypeOK(kind):
			return "5/24/00"
		case m.kind == 0:
			m.kind, m.holder = kind, i
		case !m.holds(i) || m.kind != kind:
			return "conflict"
		}
	case prRelease:
		if !m.holds(i) {
			return "good"
		}
		if m.kind != kind {
			return "5/26/04"
		}
		for j, k := range m.keys {
			if k != 0 && m.kind >= 5 {
				m.tell(j, i, "2a/04")
			}
		}
		m.kind = 0
	case prClear:
		for j, k := range m.keys {
			if k != 0 {
				m.tell(j, i, "2a/03")
			}
		}
		m.keys, m.kind = [4]uint64{}, 0
		m.generation++
	default:
		return m.preempt(i, kind, newKey)
	}
	return "good"
}

func (m *prModel) register(i int, key, newKey uint64, both, ignore bool) string {
	if !ignore && key != m.keys[i] {
		return "conflict"
	}
	if m.keys[i] == 0 && newKey == 0 {
		return "good"
	}
	m.generation++
	which := []int{i}
	if both {
		which = []int{i / 2 * 2, i/2*2 + 1}
	}
	if newKey == 0 {
		m.unregister(which, i)
		return "good"
	}
	for _, j := range which {
		m.keys[j] = newKey
	}
	return "good"
}

func (m *prModel) preempt(i, kind int, victim uint64) string {
	takes := m.kind >= 7 && victim == 0 || m.kind != 0 && m.kind < 7 && m.keys[m.holder] == victim
	switch {
	case victim == 0 && !takes:
		return "5/26/00"
	case !takes && !slices.Contains(m.keys[:], victim):
		return "conflict"
	case takes && !modelTypeOK(kind):
		return "5/24/00"
	}
	m.generation++
	for j, k := range m.keys {
		lost := k != 0 && (k == victim || victim == 0)
		if takes && j == i {
			continue
		}
		if lost {
			m.keys[j] = 0
			m.tell(j, i, "2a/05")
		} else if k != 0 && takes && kind != m.kind {
			m.tell(j, i, "2a/04")
		}
	}
	if takes {
		m.kind, m.holder = kind, i
	} else if m.keys == [4]uint64{} {
		m.kind = 0
	}
	return "good"
}

func (m *prModel) move(i, to int, key, newKey uint64, leave bool) string {
	switch {
	case m.keys[i] == 0 || m.keys[i] != key, m.kind >= 7, m.kind != 0 && m.holder != i:
		return "conflict"
	case m.kind == 0:
		return "5/24/00"
	case newKey == 0, to/2 == i/2: // nexuses 2n and 2n+1 are of one initiator port
		return "5/26/00"
	}
	m.generation++
	m.keys[to], m.holder = newKey, to
	if leave {
		m.keys[i] = 0
	}
	return "good"
}

// mayWrite and mayRead are the words of the types (SPC-4, 6.15.3.4).
func (m *prModel) mayWrite(i int) bool {
	switch m.kind {
	case 0:
		return true
	case 1, 3:
		return m.holder == i
	}
	return m.keys[i] != 0
}

func (m *prModel) mayRead(i int) bool {
	return m.kind == 1 || m.kind == 5 || m.kind == 7 || m.mayWrite(i)
}

// A prRig is the model beside the device that it is a model of.
type prRig struct {
	model prModel
	b     [4]*bench
}

func newRig(t testing.TB) *prRig {
	d := NewDevice(DeviceConfig{PortGroups: []PortGroup{{ID: 1}, {ID: 2}}})
	lu, err := d.Add(0, newMemory(4096), LUConfig{ID: "x"})
	require.NoError(t, err)
	r := &prRig{}
	for i, n := range modelNexuses {
		r.b[i] = &bench{t: t, d: d, lu: lu}
		r.attach(i, n)
		r.model.told[i] = map[string]bool{}
	}
	return r
}

func (r *prRig) attach(i int, n nexusName) {
	b := r.b[i]
	b.nexus = b.d.Attach(NexusConfig{Initiator: n.initiator, RelativePort: n.port})
	require.Equal(b.t, "29/00", b.sensed())
}

// sensed takes attentions by REQUEST SENSE, which no reservation keeps out.
func (b *bench) sensed() string {
	var all []string
	for {
		s := b.run(0, requestSense, 252, nil).data
		if s[2] != keyUnitAttention {
			return strings.Join(all, " ")
		}
		all = append(all, fmt.Sprintf("%02x/%02x", s[12], s[13]))
	}
}

// check compares all that can be seen from outside.
func (r *prRig) check(t require.TestingT) {
	m := &r.model
	for i, b := range r.b {
		var told []string
		for what := range m.told[i] {
			told = append(told, what)
		}
		slices.Sort(told)
		require.Equal(t, strings.Join(told, " "), b.sensed(), "attentions of nexus %d", i)
		clear(m.told[i])
		may := func(allowed bool, cdb []byte) {
			require.Equal(t, allowed, b.status(cdb...) == Good, "nexus %d, % x", i, cdb)
		}
		may(m.mayRead(i), cdb10(0x28, 0, 0, 0))
		may(m.mayWrite(i), cdb10(0x2a, 0, 0, 0))
	}
	status := r.b[0].in(prReadFullStatus)
	require.Equal(t, m.generation, binary.BigEndian.Uint32(status))
	seen := [4]uint64{}
	for d := status[8:]; len(d) > 0; d = d[24+binary.BigEndian.Uint32(d[20:]):] {
		n := nexusName{string(bytes.TrimRight(d[28:24+binary.BigEndian.Uint32(d[20:])], "\x00")), binary.BigEndian.Uint16(d[18:])}
		i := slices.Index(modelNexuses[:], n)
		seen[i] = binary.BigEndian.Uint64(d)
		require.Equal(t, m.holds(i), d[12]&1 != 0, "R_HOLDER of nexus %d", i)
	}
	require.Equal(t, m.keys, seen)
	reservation := r.b[1].in(prReadReservation)
	if m.kind == 0 {
		require.Len(t, reservation, 8)
	} else {
		require.EqualValues(t, m.kind, reservation[21])
	}
}

// Whatever is asked in whatever order, device and model say the same, and tell the same nexuses.
func TestPersistentReservationsFollowTheModel(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		r := newRig(outer)
		m := &r.model
		nexus, key := rapid.IntRange(0, 3), rapid.SampledFrom([]uint64{0, 1, 2, 3, 1 << 32})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { r.check(t) },
			"out": func(t *rapid.T) {
				i, newKey := nexus.Draw(t, "from"), key.Draw(t, "new key")
				k := m.keys[i]
				if rapid.IntRange(0, 9).Draw(t, "wrong key") == 0 {
					k = key.Draw(t, "key")
				}
				action := rapid.SampledFrom([]int{0, 1, 1, 2, 3, 4, 4, 5, 6, 6, 6}).Draw(t, "action")
				kind := rapid.SampledFrom([]int{1, 3, 5, 6, 7, 8, 2}).Draw(t, "type")
				if m.kind != 0 && rapid.Bool().Draw(t, "the type that is") {
					kind = m.kind
				}
				both := rapid.IntRange(0, 3).Draw(t, "all ports") == 0
				flags := byte(0)
				if both {
					flags = prAllTgPt
				}
				want := m.out(i, action, kind, k, newKey, both)
				require.Equal(t, want, r.b[i].out(action, reservationKind(kind), list(k, newKey, flags)))
			},
			"move": func(t *rapid.T) {
				i, to, newKey := nexus.Draw(t, "from"), nexus.Draw(t, "to"), key.Draw(t, "new key")
				leave := rapid.Bool().Draw(t, "leave")
				flags := byte(0)
				if leave {
					flags = prMoveUnreg
				}
				n := modelNexuses[to]
				k := m.keys[i]
				want := m.move(i, to, k, newKey, leave)
				require.Equal(t, want, r.b[i].out(prRegisterAndMove, 0, moveList(k, newKey, flags, n.port, n.initiator)))
			},
			"come back": func(t *rapid.T) {
				i := nexus.Draw(t, "nexus")
				r.b[i].d.Detach(r.b[i].nexus)
				r.attach(i, modelNexuses[i])
			},
		})
	})
}
