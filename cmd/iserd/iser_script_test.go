package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// buildIser builds the initiator's command, once and when a script first wants it: it is another
// program, which a test here cannot be part of.
func buildIser(dir string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		path := filepath.Join(dir, "iser")
		cmd := exec.Command("go", "build", "-o", path, "github.com/goiser/goiser/cmd/iser")
		cmd.Stderr = os.Stderr
		return path, cmd.Run()
	})
}

// runIser runs the initiator's command with ARGS; its output is there for stdout and stderr.
func runIser(build func() (string, error)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		path, err := build()
		ts.Check(err)
		if err := ts.Exec(path, args...); (err != nil) != neg {
			ts.Fatalf("iser %v: %v", args, err)
		}
	}
}
