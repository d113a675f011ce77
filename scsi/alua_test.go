package scsi

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	reportGroups   = []byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}
	reportExtended = []byte{0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}
)

// setGroups is SET TARGET PORT GROUPS with a list of state and group pairs.
func (b *bench) setGroups(pairs ...byte) string {
	list := make([]byte, 4)
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, pairs[i], 0, 0, pairs[i+1])
	}
	return answer(b.run(0, []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}, 0, list))
}

func (b *bench) groups() []byte { return b.run(0, reportGroups, 256, nil).data }

// twoPaths is a unit seen through port groups 1, optimized, and 2, standby.
func twoPaths(t *testing.T) (one, two *bench) {
	d := NewDevice(DeviceConfig{Name: "iqn.2026-01.test:x", PortGroups: []PortGroup{{ID: 1}, {ID: 2, State: Standby}}})
	lu, err := d.Add(0, newMemory(1<<20), LUConfig{ID: "unit 0"})
	require.NoError(t, err)
	path := func(port uint16) *bench {
		b := &bench{t: t, d: d, lu: lu, nexus: d.Attach(NexusConfig{Initiator: portA, RelativePort: port})}
		require.Equal(t, "6/29/00", b.ready(0))
		return b
	}
	return path(1), path(2)
}

// PR-08: every path tells the same of all groups.
func TestReportTargetPortGroupsBytes(t *testing.T) {
	one, two := twoPaths(t)
	want := golden(t, `00000018  length
		00 8f 0001 00 00 00 01 0000 0001  optimized, all states supported, one port
		02 8f 0002 00 00 00 01 0000 0002  standby`)
	assert.Equal(t, want, one.groups())
	assert.Equal(t, want, two.groups())
	extended := append(golden(t, "0000001c 10 00 00 00"), want[4:]...)
	assert.Equal(t, extended, two.run(0, reportExtended, 256, nil).data)
	assert.Equal(t, "5/24/00", one.run(0, []byte{0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, 256, nil).sense())

	require.NoError(t, one.d.SetPortGroupState(1, NonOptimized))
	one.attentions()
	two.attentions()
	require.Equal(t, "good", two.setGroups(0, 2))
	one.attentions()
	want = golden(t, "00000018 01 8f 0001 00 02 00 01 0000 0001 00 8f 0002 00 01 00 01 0000 0002")
	assert.Equal(t, want, one.groups())
	assert.Equal(t, want, two.groups())
}

// The paths of a unit lead to one identity, and differ in port and group.
func TestPathsShowOneIdentity(t *testing.T) {
	one, two := twoPaths(t)
	a, b := inquiry(one, 0, 1, 0x83).data, inquiry(two, 0, 1, 0x83).data
	assert.Equal(t, a[:60], b[:60], "designators of the unit")
	assert.Equal(t, bytes.ReplaceAll(a, golden(t, "0004 00000001"), golden(t, "0004 00000002"))[:76], b[:76])
	assert.Equal(t, inquiry(one, 0, 1, 0x80).data, inquiry(two, 0, 1, 0x80).data)
}

// Which commands are allowed through a group in a state, written down from SPC-4, 5.16.2.4 to 5.16.2.8.
func TestCommandsAllowedInAccessStates(t *testing.T) {
	always := []string{"INQUIRY", "REPORT LUNS", "REQUEST SENSE", "REPORT TARGET PORT GROUPS"}
	unavailable := append(always, "SET TARGET PORT GROUPS")
	standby := append(unavailable, "MODE SENSE(6)", "MODE SENSE(10)", "MODE SELECT(6)", "MODE SELECT(10)",
		"PERSISTENT RESERVE IN, READ KEYS", "PERSISTENT RESERVE IN, READ RESERVATION",
		"PERSISTENT RESERVE IN, REPORT CAPABILITIES", "PERSISTENT RESERVE IN, READ FULL STATUS",
		"PERSISTENT RESERVE OUT, REGISTER", "PERSISTENT RESERVE OUT, RESERVE", "PERSISTENT RESERVE OUT, RELEASE",
		"PERSISTENT RESERVE OUT, CLEAR", "PERSISTENT RESERVE OUT, PREEMPT", "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
		"PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", "PERSISTENT RESERVE OUT, REGISTER AND MOVE")
	for _, c := range []struct {
		state   AccessState
		allowed []string
		sense   string
	}{
		{Standby, standby, "2/04/0b"},
		{Unavailable, unavailable, "2/04/0c"},
		{Transitioning, always, "2/04/0a"},
	} {
		one, two := twoPaths(t)
		require.NoError(t, one.d.SetPortGroupState(2, c.state))
		one.attentions()
		two.attentions()
		for i := range operations {
			op := &operations[i]
			cdb := make([]byte, len(op.usage))
			cdb[0], cdb[1] = op.opcode, byte(max(op.action, 0))
			got := two.run(0, cdb, 0, nil).sense()
			if slices.Contains(c.allowed, op.name) {
				assert.NotEqual(t, c.sense, got, "%s, %v", op.name, c.state)
			} else {
				assert.Equal(t, c.sense, got, "%s, %v", op.name, c.state)
			}
			assert.NotEqual(t, c.sense, one.run(0, cdb, 0, nil).sense(), "%s through the other group", op.name)
			one.d.ResetLU(0, nil)
			one.attentions()
			two.attentions()
		}
		sense := two.run(0, requestSense, 252, nil).data
		assert.Equal(t, c.sense, (&result{Task: Task{sense: [MaxSense]byte(append(sense, make([]byte, MaxSense-len(sense))...)), senseLen: len(sense)}}).sense())
	}
}

// INQUIRY says through which port the unit cannot be had: PERIPHERAL QUALIFIER 001b (SPC-4, 5.16.2.4.5).
func TestUnavailableUnitIsNotConnected(t *testing.T) {
	one, two := twoPaths(t)
	for _, s := range []AccessState{Optimized, NonOptimized, Standby, Unavailable, Transitioning, Optimized} {
		require.NoError(t, one.d.SetPortGroupState(2, s))
		want := byte(0)
		if s == Unavailable {
			want = 0x20
		}
		for page := range 2 { // standard data, and a VPD page
			assert.Equal(t, want, inquiry(two, 0, byte(page), byte(0x83*page)).data[0], "%v", s)
			assert.Zero(t, inquiry(one, 0, byte(page), byte(0x83*page)).data[0], "the other group")
		}
	}
	assert.Equal(t, byte(noUnitByte), inquiry(two, 1, 0, 0).data[0])
}

func TestStatesChange(t *testing.T) {
	one, two := twoPaths(t)
	assert.Equal(t, "2/04/0b", two.ready(0))
	write := cdb10(0x2a, 0, 0, 1)
	assert.Equal(t, "2/04/0b", two.run(0, write, 0, blocksOf('x', 1)).sense())

	require.Equal(t, "good", two.setGroups(byte(Optimized), 2, byte(Standby), 1), "through the standby path")
	assert.Equal(t, "6/2a/06", one.ready(0))
	assert.Equal(t, "2/04/0b", one.ready(0))
	assert.Empty(t, two.ready(0), "who has asked is not told")
	assert.Equal(t, Good, two.run(0, write, 0, blocksOf('x', 1)).Status)
	require.Equal(t, "good", two.setGroups(byte(Optimized), 2), "no change")
	assert.Equal(t, "2/04/0b", one.ready(0))

	require.NoError(t, one.d.SetPortGroupState(1, Transitioning))
	assert.Equal(t, "6/2a/06", one.ready(0))
	assert.Equal(t, "6/2a/06", two.ready(0))
	assert.Equal(t, "2/04/0a", one.ready(0))
	require.NoError(t, one.d.FailTransition(1, Standby))
	assert.Equal(t, "6/2a/07", one.ready(0))
	assert.Equal(t, "6/2a/07", two.ready(0))
	require.NoError(t, one.d.SetPortGroupState(1, Optimized))
	one.attentions()
	assert.Nil(t, one.lu.limited.Load(), "nothing to look at any more")
	assert.Equal(t, []PortGroup{{ID: 1}, {ID: 2, State: Standby}}, one.d.PortGroups(), "explicit states are the unit's")

	assert.Error(t, one.d.SetPortGroupState(3, Standby))
	assert.Error(t, one.d.SetPortGroupState(1, 4))
	// A unit that comes later has the states of now; a group too.
	require.NoError(t, one.d.SetPortGroupState(1, Unavailable))
	_, err := one.d.Add(1, newMemory(4096), LUConfig{ID: "b"})
	require.NoError(t, err)
	one.attentions()
	assert.Equal(t, "6/29/00", one.ready(1))
	assert.Equal(t, "2/04/0c", one.ready(1))
	three := one.peer(portA, 3)
	assert.Equal(t, "6/29/00", three.ready(1))
	assert.Empty(t, three.ready(1))
	assert.Len(t, three.groups(), 4+3*12)
}

func TestSetTargetPortGroupsRefusals(t *testing.T) {
	one, two := twoPaths(t)
	before := one.groups()
	for what, pairs := range map[string][]byte{
		"offline":       {0x0e, 1},
		"transitioning": {0x0f, 1},
		"4":             {0x04, 1},
		"no group":      {0x00, 9},
		"the second":    {byte(Standby), 1, 0x0f, 2},
	} {
		assert.Equal(t, "5/26/00", one.setGroups(pairs...), what)
	}
	for _, n := range []uint16{1, 2, 3, 5, 6, 4 + 4*maxPortGroups + 4, 65535} {
		cdb := []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0, 0}
		assert.Equal(t, "5/1a/00", one.run(0, cdb, 0, make([]byte, n)).sense(), "%d bytes", n)
	}
	cdb := []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
	assert.Equal(t, "5/1a/00", one.run(0, cdb, 0, make([]byte, 7)).sense(), "fewer bytes sent")
	cdb[9] = 0
	assert.Equal(t, Good, one.status(cdb...))
	assert.Equal(t, before, one.groups())
	assert.Equal(t, "2/04/0b", two.ready(0), "nobody was told of anything")
}

// A conflict comes before what the path says (SAM-5, 5.3.3), and a change of state before both is told after it.
func TestConflictBeforeAccessState(t *testing.T) {
	one, two := twoPaths(t)
	one.register(keyA)
	require.Equal(t, "good", one.out(prReserve, exclusiveAccess, list(keyA, 0, 0)))
	assert.Equal(t, ReservationConflict, two.status(cdb10(0x28, 0, 0, 1)...))
	assert.Equal(t, "good", two.out(prRegister, 0, list(0, keyA, 0)), "through a standby path")
}

// TestGroupIsAdded: a group that comes later is reported, in its state, and paths through it have its rules.
func TestGroupIsAdded(t *testing.T) {
	d := NewDevice(DeviceConfig{Name: "iqn.2026-01.test:x"})
	lu, err := d.Add(0, newMemory(1<<20), LUConfig{ID: "unit 0"})
	require.NoError(t, err)
	require.NoError(t, d.AddPortGroup(PortGroup{ID: 2, State: Standby}))
	require.EqualError(t, d.AddPortGroup(PortGroup{ID: 2}), "port group 2: exists already")
	assert.Equal(t, []PortGroup{{ID: 1}, {ID: 2, State: Standby}}, d.PortGroups())
	b := &bench{t: t, d: d, lu: lu, nexus: d.Attach(NexusConfig{Initiator: portA, RelativePort: 2})}
	require.Equal(t, "6/29/00", b.ready(0))
	require.Equal(t, "2/04/0b", b.ready(0), "standby")
}
