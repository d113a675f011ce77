package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPagesAreInHex(t *testing.T) {
	for s, want := range map[string]vpdPage{"b0": 0xb0, "0xB0": 0xb0, "83": 0x83, "0": 0, "ff": 0xff} {
		var p vpdPage
		require.NoError(t, p.Set(s), s)
		assert.Equal(t, want, p, s)
	}
	for _, s := range []string{"", "100", "-1", "x", "0x", "b0h"} {
		var p vpdPage
		assert.EqualError(t, p.Set(s), "want a page from 0 to ff, in hex", s)
	}
}
