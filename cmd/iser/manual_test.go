package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every command has a page, in which roff finds nothing wrong.
func TestManualPages(t *testing.T) {
	page := func(args ...string) string {
		a := &app{out: os.Stdout, errOut: os.Stderr}
		root := a.root()
		var b bytes.Buffer
		root.SetOut(&b)
		root.SetArgs(append([]string{"manual"}, args...))
		require.NoError(t, root.Execute(), "%v", args)
		return b.String()
	}
	commands := strings.Split(strings.TrimSpace(page("--list")), "\n")
	require.Contains(t, commands, "bench")
	require.Contains(t, commands, "config import")
	var files []string
	dir := t.TempDir()
	for _, c := range append(commands, "") {
		text := page(strings.Fields(c)...)
		assert.Contains(t, text, ".SH NAME\n")
		assert.NotContains(t, text, "string\nstring", c)
		file := filepath.Join(dir, "iser-"+strings.ReplaceAll(c, " ", "-")+".1")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		files = append(files, file)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed: ", err)
	}
	for _, f := range files {
		out, err := exec.Command(groff, "-man", "-Tutf8", "-w", "all", "-W", "break", "-z", f).CombinedOutput()
		require.NoError(t, err)
		assert.Empty(t, string(out), "what groff warns of in the page of %s", f)
	}
}
