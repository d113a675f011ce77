package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each import that docs/MOVE.md shows is run by cmd/iserd's script, with a file of its own.
func TestImportsOfTheDocumentationAreRun(t *testing.T) {
	doc, err := os.ReadFile("../../docs/MOVE.md")
	require.NoError(t, err)
	script, err := os.ReadFile("../iserd/testdata/script/import.txtar")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^iser config import (\w+) \S*/(\S+) > iserd.yaml$`).FindAllSubmatch(doc, -1)
	require.Len(t, commands, 3)
	for _, c := range commands {
		_, err := importFrom(string(c[1]))
		require.NoError(t, err)
		assert.Contains(t, string(script), "\niser config import "+string(c[1])+" "+string(c[2])+"\n")
	}
	assert.Contains(t, string(doc), "\niserd check iserd.yaml\n")
}
