package roce_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// written begins a write of one sector and returns what it writes.
func written(m *model, session int) (*version, []byte) {
	p := make([]byte, sector)
	return m.write(session, 0, p), p
}

func TestStackModelKnowsWhatAReadMayReturn(t *testing.T) {
	zeros := make([]byte, sector)
	m := newModel(1, 2)
	require.NoError(t, m.check(m.read(), 0, zeros))

	// While a write runs, both versions are right.
	began := m.read()
	a, dataA := written(m, 1)
	require.NoError(t, m.check(began, 0, zeros))
	m.acknowledge(a)
	require.NoError(t, m.check(began, 0, zeros), "it began before the acknowledgement")
	require.NoError(t, m.check(m.read(), 0, dataA))
	require.ErrorContains(t, m.check(m.read(), 0, zeros), "zeros from before the first write, which write 1")

	// One that was given up may land at any time, also after later ones, until its session has been replaced.
	_, dataB := written(m, 2)
	c, dataC := written(m, 1)
	m.acknowledge(c)
	require.NoError(t, m.check(m.read(), 0, dataB))
	require.NoError(t, m.check(m.read(), 0, dataC))
	require.Error(t, m.check(m.read(), 0, dataA))
	m.settle(2)
	require.NoError(t, m.check(m.read(), 0, dataB), "it may have come after the other")
	d, dataD := written(m, 3)
	m.acknowledge(d)
	require.NoError(t, m.check(m.read(), 0, dataD))
	require.ErrorContains(t, m.check(m.read(), 0, dataB), "which write 4")

	// What has been read was in place, acknowledged or not: what was settled before it began does not come back.
	_, dataE := written(m, 4)
	require.NoError(t, m.check(m.read(), 0, dataD))
	require.NoError(t, m.check(m.read(), 0, dataE))
	require.ErrorContains(t, m.check(m.read(), 0, dataD), "not acknowledged, but seen")
}

func TestStackModelKnowsForeignSectors(t *testing.T) {
	m := newModel(1, 4)
	v, p := written(m, 1)
	m.acknowledge(v)
	other := newModel(2, 4)
	_, foreign := written(other, 1)
	flipped := bytes.Clone(p)
	flipped[100] ^= 4
	torn := append(bytes.Clone(p[:256]), make([]byte, 256)...)
	for what, wrong := range map[string]struct {
		off  int64
		data []byte
	}{
		"another sector's": {sector, p},
		"another world's":  {0, foreign},
		"one wrong bit":    {0, flipped},
		"half of it":       {0, torn},
		"never filled":     {0, stackMemory()[0][:sector]},
	} {
		assert.Error(t, m.check(m.read(), wrong.off, wrong.data), what)
	}
	require.NoError(t, m.check(m.read(), 0, p))
}
