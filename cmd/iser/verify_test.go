package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ramDisk keeps what it is told; stop, if there is one, is called with the number of each write.
type ramDisk struct {
	mu     sync.Mutex
	data   []byte
	writes int
	stop   func(n int)
}

func (d *ramDisk) SizeBytes() int64            { return int64(len(d.data)) }
func (d *ramDisk) BlockSize() int              { return 512 }
func (d *ramDisk) Flush(context.Context) error { return nil }

func (d *ramDisk) ReadAt(_ context.Context, p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[off:])
	return nil
}

func (d *ramDisk) WriteAt(_ context.Context, p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data[off:], p)
	if d.writes++; d.stop != nil {
		d.stop(d.writes)
	}
	return nil
}

// verifyOnce runs the command's work on a disk, with its state in a folder, and returns its report.
func verifyOnce(t *testing.T, ctx context.Context, d *ramDisk, p verify.Plan, files verifyFiles) (verifyReport, error) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	st, err := openVerifyState(files.state)
	require.NoError(t, err)
	defer st.dir.Close()
	a := &app{out: out, errOut: out, output: "json", quiet: true}
	verr := a.verify(ctx, "iscsi://test", []verify.Disk{d}, p, files, st)
	b, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	var rep verifyReport
	if len(b) > 0 {
		require.NoError(t, json.Unmarshal(b, &rep))
	}
	return rep, verr
}

func TestVerifyGoesOnAfterItWasStopped(t *testing.T) {
	files := verifyFiles{dump: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), heat: filepath.Join(t.TempDir(), "map.svg")}
	f := verifyFlags{offset: "0", bs: "4KiB", order: "random", seed: 1, runs: 1, depth: 1}
	d := &ramDisk{data: make([]byte, 1<<20)}
	p, err := f.plan(d)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	d.stop = func(n int) {
		if n == 100 {
			cancel()
		}
	}
	_, err = verifyOnce(t, ctx, d, p, files)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "goes on")

	other := p
	other.Seed = 2
	_, err = verifyOnce(t, t.Context(), d, other, files)
	require.ErrorIs(t, err, verify.ErrOtherPlan)
	assert.Equal(t, exitUsage, exitCode(err))

	rep, err := verifyOnce(t, t.Context(), d, p, files)
	require.NoError(t, err)
	assert.LessOrEqual(t, d.writes, 256+1, "what was done is not done again")
	assert.EqualValues(t, 1<<20, rep.ReadBytes)
	assert.FileExists(t, files.heat)

	d.writes = 0
	_, err = verifyOnce(t, t.Context(), d, p, files)
	require.NoError(t, err)
	assert.Equal(t, 256, d.writes, "the state is gone: it begins anew")
}

func TestVerifyRangesAreParsed(t *testing.T) {
	f := verifyFlags{offset: "0", bs: "4KiB", order: "random", runs: 1, depth: 1}
	d := &ramDisk{data: make([]byte, 1<<20)}
	f.ranges = []string{"0-4KiB", "768KiB-", "8KiB+512"}
	p, err := f.plan(d)
	require.NoError(t, err)
	assert.Equal(t, []verify.Range{{Start: 0, End: 4096}, {Start: 8192, End: 8704}, {Start: 768 << 10, End: 1 << 20}}, p.Ranges)
	f.ranges = nil
	for what, spoil := range map[string]func(f *verifyFlags){
		"--order":          func(f *verifyFlags) { f.order = "backwards" },
		"--bs":             func(f *verifyFlags) { f.bs = "many" },
		"request size":     func(f *verifyFlags) { f.bs = "8TiB" },
		"--offset":         func(f *verifyFlags) { f.offset = "x" },
		"--size":           func(f *verifyFlags) { f.size = "x" },
		"not on the disk":  func(f *verifyFlags) { f.offset, f.size = "4096TiB", "8191TiB" },
		"not a range":      func(f *verifyFlags) { f.ranges = []string{"4611686018427387904+4611686018427387904"} }, // the sum wraps
		"bytes 2097152 to": func(f *verifyFlags) { f.ranges = []string{"2MiB-"} },
		"one or the other": func(f *verifyFlags) { f.ranges, f.size = []string{"0-4KiB"}, "1MiB" },
	} {
		g := f
		spoil(&g)
		_, err := g.plan(d)
		require.ErrorContains(t, err, what)
		assert.Equal(t, exitUsage, exitCode(err))
	}
}
