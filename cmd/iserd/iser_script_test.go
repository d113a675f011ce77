package main

import (
	"errors"
	"fmt"
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

// iserFails runs the initiator's command with the arguments after the first, which is the exit code that it must have.
func iserFails(build func() (string, error)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		path, err := build()
		ts.Check(err)
		err = ts.Exec(path, args[1:]...)
		exit, ok := errors.AsType[*exec.ExitError](err)
		if neg || !ok || fmt.Sprint(exit.ExitCode()) != args[0] {
			ts.Fatalf("iser %v: %v, want exit code %s", args[1:], err, args[0])
		}
	}
}
