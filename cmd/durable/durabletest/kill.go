package durabletest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Killed runs the calling test once more, in a process of its own and with env (NAME=VALUE) in its environment. That one
// saves numbers for ever and prints each, in a line, when it is durable. It is killed after n of them; last is the last
// that it printed.
func Killed(t *testing.T, env string, n int) (last int) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), env)
	told, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	for range n {
		_, err := fmt.Fscan(told, &last)
		require.NoError(t, err)
	}
	require.NoError(t, child.Process.Kill())
	for { // what it said before it was killed
		if _, err := fmt.Fscan(told, &last); err != nil {
			break
		}
	}
	require.Error(t, child.Wait())
	return last
}
