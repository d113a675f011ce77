package scsi

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestClassesOfCommands: the table of classes follows the table of commands.
func TestClassesOfCommands(t *testing.T) {
	for i := range operations {
		op := &operations[i]
		c := ClassOf(op.opcode)
		if op.flags&touchesBlocks != 0 {
			assert.NotEqual(t, ClassOther, c, "%s works on blocks", op.name)
		}
	}
	for opcode := range 256 {
		if ClassOf(uint8(opcode)) != ClassOther {
			assert.NotEmpty(t, byOpcode[opcode], "opcode %02x has a class, and no unit knows it", opcode)
		}
	}
	assert.Equal(t, "read", ClassOf(0x28).String())
	assert.Equal(t, "write", ClassOf(0x8a).String())
	assert.Equal(t, "other", ClassOf(0x12).String())
	names := map[string]bool{}
	for c := range Class(Classes) {
		assert.Regexp(t, "^[a-z_]+$", c.String())
		assert.False(t, names[c.String()], "%s twice", c)
		names[c.String()] = true
	}
}

// TestParseSense: what the device says in either format, and no more than is there.
func TestParseSense(t *testing.T) {
	e := senseError{key: 3, asc: 0x11, ascq: 0x01}
	for name, b := range map[string][]byte{"fixed": e.appendFixed(nil), "descriptor": e.appendDescriptor(nil)} {
		key, asc, ascq := ParseSense(b)
		assert.Equal(t, []uint8{3, 0x11, 0x01}, []uint8{key, asc, ascq}, name)
		for n := range b {
			key, asc, ascq := ParseSense(b[:n])
			assert.Contains(t, []uint8{0, 3}, key, "%s, %d bytes", name, n)
			assert.Contains(t, []uint8{0, 0x11}, asc, "%s, %d bytes", name, n)
			assert.Contains(t, []uint8{0, 0x01}, ascq, "%s, %d bytes", name, n)
		}
	}
	key, _, _ := ParseSense([]byte{0x72, 0xff})
	assert.EqualValues(t, 0xf, key, "the rest of the byte is reserved")
}
