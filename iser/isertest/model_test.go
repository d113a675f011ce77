package isertest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore/stamp"
)

// written begins a write of one sector and returns what it writes.
func written(m *Model, session int) (*Version, []byte) {
	p := make([]byte, sector)
	return m.Write(session, 0, p), p
}

func TestModelKnowsWhatAReadMayReturn(t *testing.T) {
	zeros := make([]byte, sector)
	m := NewModel(1, 2)
	require.NoError(t, m.Check(m.Read(), 0, zeros))

	// While a write runs, both versions are right.
	began := m.Read()
	a, dataA := written(m, 1)
	require.NoError(t, m.Check(began, 0, zeros))
	m.Acknowledge(a)
	require.NoError(t, m.Check(began, 0, zeros), "it began before the acknowledgement")
	require.NoError(t, m.Check(m.Read(), 0, dataA))
	require.ErrorContains(t, m.Check(m.Read(), 0, zeros), "zeros from before the first write, which write 1")

	// One that was given up may land at any time, also after later ones, until its session has been replaced.
	_, dataB := written(m, 2)
	c, dataC := written(m, 1)
	m.Acknowledge(c)
	require.NoError(t, m.Check(m.Read(), 0, dataB))
	require.NoError(t, m.Check(m.Read(), 0, dataC))
	require.Error(t, m.Check(m.Read(), 0, dataA))
	m.Settle(2)
	require.NoError(t, m.Check(m.Read(), 0, dataB), "it may have come after the other")
	d, dataD := written(m, 3)
	m.Acknowledge(d)
	require.NoError(t, m.Check(m.Read(), 0, dataD))
	require.ErrorContains(t, m.Check(m.Read(), 0, dataB), "which write 4")

	// What has been read was in place, acknowledged or not: what was settled before it began does not come back.
	_, dataE := written(m, 4)
	require.NoError(t, m.Check(m.Read(), 0, dataD))
	require.NoError(t, m.Check(m.Read(), 0, dataE))
	require.ErrorContains(t, m.Check(m.Read(), 0, dataD), "not acknowledged, but seen")
}

func TestModelKnowsForeignSectors(t *testing.T) {
	m := NewModel(1, 4)
	v, p := written(m, 1)
	m.Acknowledge(v)
	other := NewModel(2, 4)
	_, foreign := written(other, 1)
	flipped := bytes.Clone(p)
	flipped[100] ^= 4
	poisoned := make([]byte, sector)
	stamp.Poison(poisoned)
	torn := append(bytes.Clone(p[:256]), make([]byte, 256)...)
	for what, wrong := range map[string]struct {
		off  int64
		data []byte
	}{
		"another sector's": {sector, p},
		"another world's":  {0, foreign},
		"one wrong bit":    {0, flipped},
		"half of it":       {0, torn},
		"never filled":     {0, poisoned},
	} {
		assert.Error(t, m.Check(m.Read(), wrong.off, wrong.data), what)
	}
	require.NoError(t, m.Check(m.Read(), 0, p))
}
