package target

import (
	"encoding/binary"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAbortStopsACopyBetweenChunks: EXTENDED COPY of 8 MiB within a unit, aborted in its first chunk. The
// function is answered when that is done, and no other chunk follows; commands of the other unit go on
// meanwhile.
func TestAbortStopsACopyBetweenChunks(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	const blocks = 8 << 20 / 512
	list := make([]byte, 16+28)
	list[1], list[11] = 3<<3, 28 // no list identifier, one segment descriptor
	segment := list[16:]
	copy(segment, []byte{0x02, 0, 0, 0x18, 0xff, 0xff, 0xff, 0xff})
	binary.BigEndian.PutUint16(segment[10:], blocks)
	binary.BigEndian.PutUint64(segment[20:], blocks)
	cdb := make([]byte, 16)
	cdb[0], cdb[13] = 0x83, byte(len(list))
	copying := func() uint32 {
		return c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: uint32(len(list)), LUN: lun(1)}, cdb, list)
	}
	b.slow.Hold()
	itt := copying()
	b.slow.Held(t, 1) // it reads
	r, _ := c.response(c.read(0, 0, 8))
	require.Zero(t, r.Status)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 2})
	c.ping() // it has been seen, and not answered
	b.slow.Release()
	c.tmfResponse(iscsi.TMComplete)
	before := b.slow.Writes()
	assert.LessOrEqual(t, before, 1, "the chunk that was being copied, of eight")

	r, _ = c.response(copying())
	require.Zero(t, r.Status)
	require.Equal(t, 8, b.slow.Writes()-before)
}
