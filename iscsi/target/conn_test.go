package target

import (
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func bothTraits(t *testing.T, f func(t *testing.T, tr iscsi.Traits)) {
	for _, tr := range []iscsi.Traits{tcpTraits, iserTraits} {
		t.Run(tr.Name, func(t *testing.T) { f(t, tr) })
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		b := newBench(t, benchConfig{})
		c := b.login(tr)
		c.clearUA(0, 1)
		for n, size := range []int{512, 4096, 8192, 65536, 1 << 20} {
			for unit := range 2 {
				for _, immediate := range []int{0, 512, 4096, 8192} {
					if immediate > size {
						continue
					}
					data := pattern(size, byte(n+unit*16+immediate>>8))
					c.itt++
					itt := c.itt
					c.dm.set(func() { c.dm.memory[itt] = data })
					c.command(iscsi.SCSICommand{
						Final: true, Write: true, LUN: lun(unit), EDTL: uint32(size), ITT: itt,
					}, write10(8, size/512), data[:immediate])
					r, _ := c.response(itt)
					require.Zero(t, r.Status)
					require.False(t, r.Underflow || r.Overflow)

					itt = c.read(unit, 8, size/512)
					r, _ = c.response(itt)
					require.Zero(t, r.Status)
					c.dm.set(func() { require.Equal(t, data, c.dm.memory[itt]) })
				}
			}
		}
	})
}

func TestSenseGoesBehindItsLength(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	itt := c.read(0, 1<<30, 1)
	r, sense := c.response(itt)
	assert.Equal(t, uint8(scsi.CheckCondition), r.Status)
	require.GreaterOrEqual(t, len(sense), 20)
	assert.Equal(t, len(sense)-2, int(sense[0])<<8|int(sense[1]))
	assert.Equal(t, []byte{5, 0x21, 0}, []byte{sense[4], sense[14], sense[15]})
	assert.True(t, r.Underflow)
	assert.EqualValues(t, 512, r.Residual)
}
