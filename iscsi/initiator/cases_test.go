package initiator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCaseRS03 is the field report of that number: the expected length and what the CDB asks for differ. Either the
// command is refused and nothing happens, or no more moves than both allow and the residual says how much did not.
func TestCaseRS03(t *testing.T) { onEach(t, checkRS03) }

func checkRS03(t *testing.T, n network) {
	const block = 512
	ctx := context.Background()
	s := n.open(t, n.serve(t), options(t))
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	fill := bytes.Repeat([]byte{'a'}, 3*block)
	for _, op := range []byte{0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x28, 0xa8, 0x88} {
		for _, c := range []struct{ blocks, edtl int }{
			{1, 0}, {1, 200}, {1, 512}, {1, 1024}, {1, 10000}, {2, 512},
		} {
			name := fmt.Sprintf("%#x of %d blocks, %d bytes expected", op, c.blocks, c.edtl)
			require.NoError(t, d.WriteAt(ctx, fill, 0))
			cmd := initiator.Command{CDB: transfer(op, c.blocks)}
			read := op&0x1f == 8
			data := bytes.Repeat([]byte{'b'}, c.edtl)
			if read {
				cmd.In = data
			} else {
				cmd.Out = data
			}
			res, err := s.Do(ctx, cmd)
			require.NoError(t, err, name)
			length := c.blocks * block
			moved := min(c.edtl, length)
			if res.Status == 0 {
				assert.Equal(t, c.edtl > length, res.Underflow, name)
				assert.Equal(t, c.edtl < length, res.Overflow, name)
				assert.Equal(t, max(c.edtl, length)-moved, res.Residual, name)
			} else {
				moved = 0
				require.GreaterOrEqual(t, len(res.Sense), 14, name)
				assert.EqualValues(t, 5, res.Sense[2]&0x0f, name)
				assert.Contains(t, [][]byte{{0x0e, 3}, {0x24, 0}}, res.Sense[12:14], name)
			}
			want, disk := bytes.Clone(fill), make([]byte, len(fill))
			if read {
				assert.Equal(t, moved, res.Received, name)
				assert.Equal(t, append(fill[:moved:moved], bytes.Repeat([]byte{'b'}, c.edtl-moved)...), data, name)
			} else {
				copy(want, data[:moved])
			}
			require.NoError(t, d.ReadAt(ctx, disk, 0))
			assert.Equal(t, string(want), string(disk), name)
		}
	}
	require.NoError(t, s.Err(), "the session goes on")
}

// transfer is a CDB of 10, 12 or 16 bytes, by its opcode's group (SPC-4, 4.3.5.1), for blocks from LBA 0 on.
func transfer(op byte, blocks int) []byte {
	var cdb [16]byte
	cdb[0] = op
	switch op >> 5 {
	case 4:
		binary.BigEndian.PutUint32(cdb[10:], uint32(blocks))
		return cdb[:16]
	case 5:
		binary.BigEndian.PutUint32(cdb[6:], uint32(blocks))
		return cdb[:12]
	}
	binary.BigEndian.PutUint16(cdb[7:], uint16(blocks))
	return cdb[:10]
}
