package scsi

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// peer is another nexus of the bench's device that has seen its power on.
func (b *bench) peer(initiator string, port uint16) *bench {
	b.t.Helper()
	p := &bench{t: b.t, d: b.d, lu: b.lu, nexus: b.d.Attach(NexusConfig{Initiator: initiator, RelativePort: port})}
	require.Equal(b.t, "6/29/00", p.ready(0))
	return p
}

// status runs a command without data and gives its status.
func (b *bench) status(cdb ...byte) Status { return b.run(0, cdb, 0, nil).Status }

var (
	reserve6  = []byte{0x16, 0, 0, 0, 0, 0}
	release6  = []byte{0x17, 0, 0, 0, 0, 0}
	reserve10 = append([]byte{0x56}, make([]byte, 9)...)
	release10 = append([]byte{0x57}, make([]byte, 9)...)
)

// PR-06: RESERVE excludes others, RELEASE by others does nothing.
func TestReserveAndRelease(t *testing.T) {
	for _, c := range []struct{ reserve, release []byte }{{reserve6, release6}, {reserve10, release10}, {reserve6, release10}} {
		a := newBench(t, newMemory(4096))
		b := a.peer("b", 1)
		require.Equal(t, Good, a.status(c.reserve...))
		require.Equal(t, Good, a.status(c.reserve...), "again")
		assert.Equal(t, ReservationConflict, b.status(c.reserve...))
		assert.Equal(t, Good, b.status(c.release...))
		r := b.run(0, cdb10(0x28, 0, 0, 1), 512, nil)
		assert.Equal(t, ReservationConflict, r.Status)
		assert.Nil(t, r.Sense())
		assert.EqualValues(t, 512, r.Residual)
		assert.True(t, r.Underflow)
		assert.Equal(t, Good, a.status(cdb10(0x28, 0, 0, 0)...))
		require.Equal(t, Good, a.status(c.release...))
		assert.Equal(t, Good, b.status(cdb10(0x2a, 0, 0, 0)...))
		assert.Equal(t, Good, b.status(c.reserve...))
	}
}

// PR-06, TM-10: it ends with the nexus and with a reset.
func TestReserveEndsWithNexusAndReset(t *testing.T) {
	for name, end := range map[string]func(a *bench){
		"nexus loss":   func(a *bench) { a.d.Detach(a.nexus) },
		"lun reset":    func(a *bench) { a.d.ResetLU(0, a.nexus) },
		"target reset": func(a *bench) { a.d.Reset(a.nexus) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newBench(t, newMemory(4096))
			b := a.peer("b", 1)
			require.Equal(t, Good, a.status(reserve6...))
			require.Equal(t, ReservationConflict, b.status(testReady...))
			end(a)
			b.attentions()
			assert.Equal(t, Good, b.status(reserve6...))
		})
	}
}

// A command that was on its way when its nexus ended leaves no reservation behind.
func TestReserveAfterNexusLoss(t *testing.T) {
	a := newBench(t, newMemory(4096))
	b := a.peer("b", 1)
	a.d.Detach(a.nexus)
	assert.Equal(t, ReservationConflict, a.status(reserve6...))
	assert.Empty(t, b.ready(0))
}

// A reservation costs its holders no memory, command by command.
func TestReservedUnitDoesNotAllocate(t *testing.T) {
	for _, kind := range []reservationKind{exclusiveAccess, exclusiveAccessRegistrantsOnly, exclusiveAccessAllRegistrants} {
		a, b, _ := trio(t)
		a.register(keyA)
		b.register(keyB)
		require.Equal(t, "good", a.out(prReserve, kind, list(keyA, 0, 0)))
		read, room := readTask(a)
		assert.Zero(t, testing.AllocsPerRun(100, func() { doRead(a, read, room) }))
		assert.Equal(t, Good, read.Status)
	}
}

// The unit attention of a reset comes before a conflict, any other after it (SAM-5, 5.3.3).
func TestConflictBetweenAttentions(t *testing.T) {
	a := newBench(t, newMemory(4096))
	b := a.peer("b", 1)
	require.NoError(t, a.lu.CapacityChanged())
	require.Equal(t, "6/2a/09", a.ready(0))
	require.Equal(t, Good, a.status(reserve6...))
	assert.Equal(t, ReservationConflict, b.status(testReady...))
	c := &bench{t: t, d: a.d, nexus: a.d.Attach(NexusConfig{Initiator: "c", RelativePort: 1})}
	assert.Equal(t, "6/29/00", c.ready(0))
	assert.Equal(t, ReservationConflict, c.status(testReady...))
	require.Equal(t, Good, a.status(release6...))
	assert.Equal(t, "6/2a/09", b.ready(0))
}
