package scsi

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkRegistry panics the test if a registry is one that cannot be.
func checkRegistry(t testing.TB, g *registry) {
	require.LessOrEqual(t, len(g.registrants), maxRegistrants)
	require.Len(t, g.byNexus, len(g.registrants), "a nexus twice")
	for i, r := range g.registrants {
		require.Equal(t, i, g.byNexus[r.nexus])
		require.NotZero(t, r.key)
	}
	require.True(t, g.kind == 0 || g.kind.valid())
	single := g.kind != 0 && !g.kind.allRegistrants()
	require.Equal(t, single, g.holder != nexusName{})
	require.True(t, !single || g.find(g.holder) != nil, "a holder is registered")
	require.True(t, g.kind == 0 || len(g.registrants) > 0)
	saved := *g
	saved.aptpl = true
	again, err := decodeRegistry(saved.encode())
	require.NoError(t, err)
	saved.generation, again.byNexus, saved.byNexus = 0, nil, nil
	if len(saved.registrants) == 0 {
		saved.registrants, again.registrants = nil, nil
	}
	require.Equal(t, &saved, again, "what is saved is what is loaded")
}

// FuzzPersistentOut sends any parameter list to a unit on which others have registered. Nothing panics,
// a refused command changes nothing, and what can be saved can be loaded.
func FuzzPersistentOut(f *testing.F) {
	ids := appendTransportID(appendTransportID(nil, portB), "iqn.2026-01.test:b")
	for action := range byte(8) {
		f.Add(action, byte(1), list(keyA, keyB, 0))
		f.Add(action, byte(6), list(0, keyA, prSpecIPT|prAllTgPt, ids...))
		f.Add(action, byte(8), list(keyA, 0, prAPTPL|prAllTgPt))
	}
	f.Add(byte(prRegisterAndMove), byte(0), moveList(keyA, keyC, prMoveUnreg|prAPTPL, 2, portC))
	f.Fuzz(func(t *testing.T, action, kind byte, param []byte) {
		if len(param) > maxPersistentOut+8 {
			return
		}
		d := NewDevice(DeviceConfig{PortGroups: []PortGroup{{ID: 1}, {ID: 2}}, State: &keeper{}})
		lu, err := d.Add(0, newMemory(4096), LUConfig{ID: "x"})
		require.NoError(t, err)
		a := (&bench{t: t, d: d, lu: lu}).peer(portA, 1)
		b := a.peer(portB, 2)
		b.register(keyB)
		if kind&0x80 != 0 {
			a.register(keyA)
			require.Equal(t, "good", a.out(prReserve, exclusiveAccess, list(keyA, 0, 0)))
		}
		before := b.in(prReadFullStatus)
		r := a.outTask(int(action&serviceActionMask), reservationKind(kind&0x7f), param)
		after := lu.current().registry
		checkRegistry(t, after)
		if r.Status != Good {
			require.Equal(t, before, b.in(prReadFullStatus))
			require.Empty(t, r.Preempted)
		}
		for _, n := range r.Preempted {
			require.True(t, n == a.nexus || n == b.nexus)
		}
	})
}

// FuzzTransportID: what is read is written again as it was read.
func FuzzTransportID(f *testing.F) {
	f.Add(appendTransportID(nil, portA))
	f.Add(appendTransportID(nil, "iqn.x"))
	f.Add([]byte{0x45, 0, 0, 20})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, n, ok := parseTransportID(slices.Clone(b))
		if !ok {
			return
		}
		require.LessOrEqual(t, n, len(b))
		port := id.name
		if id.isid != "" {
			port = id.port()
		}
		again, _, ok := parseTransportID(appendTransportID(nil, port))
		require.True(t, ok)
		require.Equal(t, id, again)
	})
}
