package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLabExitCodes(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nowhere", "x.svg")
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitOK, []string{"run", "bit-flip"}},
		{exitUsage, []string{"run"}},
		{exitUsage, []string{"run", "--all", "bit-flip"}},
		{exitUsage, []string{"run", "bit-flip", "torn-write"}},
		{exitUsage, []string{"run", "bit-flip", "--seeds", "0"}},
		{exitUsage, []string{"run", "bit-flip", "--seed", "18446744073709551615", "--seeds", "2"}},
		{exitUsage, []string{"run", "bit-flip", "--control", "other"}},
		{exitUsage, []string{"run", "--all", "--control", "checker-off"}},
		{exitUsage, []string{"run", "--all", "--svg", missing}},
		{exitUsage, []string{"explain"}},
		{exitNotFound, []string{"run", "wobble"}},
		{exitNotFound, []string{"explain", "wobble"}},
		{exitOther, []string{"run", "bit-flip", "--svg", missing}},
	} {
		assert.Equal(t, c.code, run(t.Context(), append([]string{"lab"}, c.args...)), "%q", c.args)
	}
}
