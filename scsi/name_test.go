package scsi

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCommandName(t *testing.T) {
	assert.Equal(t, "READ(10)", CommandName([]byte{0x28, 0xe0}))
	assert.Equal(t, "READ CAPACITY(16)", CommandName([]byte{0x9e, 0xf0}))
	assert.Empty(t, CommandName([]byte{0x9e, 0x1f}))
	assert.Empty(t, CommandName([]byte{0xff, 0}))
	assert.Empty(t, CommandName([]byte{0x28}))
}
