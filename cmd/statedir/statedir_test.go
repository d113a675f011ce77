package statedir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/goiser/goiser/cmd/durable/durabletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func opened(t *testing.T) *Dir {
	d, err := Open(filepath.Join(t.TempDir(), "state"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func TestSavedIsLoaded(t *testing.T) {
	d := opened(t)
	state, err := d.Load("a")
	require.NoError(t, err)
	require.Nil(t, state)
	for _, s := range []string{`{"n":1}`, `{"n": 2, "s": "<&>  "}`, `[]`} {
		require.NoError(t, d.Save("a", []byte(s)))
		state, err = d.Load("a")
		require.NoError(t, err)
		require.Equal(t, s, string(state))
	}
	require.NoError(t, d.Save("a", nil))
	require.NoError(t, d.Save("a", nil), "forgotten already")
	state, err = d.Load("a")
	require.NoError(t, err)
	require.Nil(t, state)
	for _, bad := range []string{"", ".", "../a", "a/b", "a.json"} {
		assert.ErrorContains(t, d.Save(bad, []byte("1")), "no name for a file")
		_, err := d.Load(bad)
		assert.ErrorContains(t, err, "no name for a file")
	}
}

func TestFileBytes(t *testing.T) {
	d := opened(t)
	require.NoError(t, d.Save("a", []byte("7")))
	b, err := os.ReadFile(filepath.Join(d.path, "a.json"))
	require.NoError(t, err)
	assert.Equal(t, `{"version":1,"sha256":"7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451","state":7}`+"\n", string(b))
	st, err := os.Stat(filepath.Join(d.path, "a.json"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), st.Mode())
}

// PR-03: every byte that is missing or changed is noticed, and said.
func TestDamageIsReported(t *testing.T) {
	d := opened(t)
	require.NoError(t, d.Save("a", []byte(`{"n":1}`)))
	path := filepath.Join(d.path, "a.json")
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	damaged := func(b []byte, what string, args ...any) {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		_, err := d.Load("a")
		assert.ErrorContains(t, err, "state file "+path+" is damaged: ", "%s", fmt.Sprintf(what, args...))
	}
	for n := range len(good) - 1 { // without its last byte, a newline, nothing is missing
		damaged(good[:n], "first %d bytes", n)
	}
	for i := range len(good) - 1 {
		b := slices.Clone(good)
		b[i] ^= 1
		damaged(b, "byte %d", i)
	}
	damaged(append(slices.Clone(good), '{'), "longer")
	damaged(make([]byte, maxFile+1), "too long")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = d.Load("a")
	assert.Error(t, err)
}

func TestOpen(t *testing.T) {
	d := opened(t)
	_, err := Open(d.path)
	assert.ErrorIs(t, err, ErrInUse)
	_, err = Open(filepath.Join(t.TempDir(), "no", "parent"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = Open(path)
	assert.ErrorContains(t, err, "not a directory")
}

// after gives what may be in a file after a power cut.
func after(p *durabletest.Platter, path string) (outcomes []string) {
	for _, b := range p.After(path) {
		if b == nil {
			outcomes = append(outcomes, "nothing")
		} else if state, err := open(b); err != nil {
			outcomes = append(outcomes, "damage")
		} else {
			outcomes = append(outcomes, string(state))
		}
	}
	return outcomes
}

// cutEverywhere saves from after each number of steps of a second Save, and lists what went wrong.
func cutEverywhere(next string, lazy func(*durabletest.Platter)) (faults []string) {
	for n := 0; ; n++ {
		p := durabletest.New()
		d := &Dir{path: "d", disk: p}
		if err := d.Save("a", []byte(`"old"`)); err != nil {
			return []string{err.Error()}
		}
		lazy(p)
		p.Steps = n
		err := d.Save("a", []byte(next))
		want := next
		if next == "" {
			want = "nothing"
		}
		for _, got := range after(p, "d/a.json") {
			if got != want && (err == nil || got != `"old"`) {
				faults = append(faults, fmt.Sprintf("after step %d (%v): %s", n, err, got))
			}
		}
		if err == nil {
			return faults
		}
	}
}

// PR-03: a power cut at any step leaves the old state or the new one, and after Save only the new one.
// Without the sync of the file, or of the directory, it does not: the test can tell.
func TestPowerCutAtEveryStep(t *testing.T) {
	for _, next := range []string{`"new"`, ""} {
		assert.Empty(t, cutEverywhere(next, func(*durabletest.Platter) {}))
		assert.NotEmpty(t, cutEverywhere(next, func(p *durabletest.Platter) { p.LazyDirs = true }))
	}
	assert.NotEmpty(t, cutEverywhere(`"new"`, func(p *durabletest.Platter) { p.LazyFiles = true }))
}

// PR-03: a process that is killed in the middle of saving leaves what it had announced, or the one after.
func TestKilledWhileSaving(t *testing.T) {
	if dir := os.Getenv("STATEDIR_TEST_CHILD"); dir != "" {
		saveForEver(dir)
	}
	dir := filepath.Join(t.TempDir(), "state")
	for range 5 {
		last := durabletest.Killed(t, "STATEDIR_TEST_CHILD="+dir, 40)
		d, err := Open(dir)
		require.NoError(t, err, "the lock went with the process")
		state, err := d.Load("a")
		require.NoError(t, err)
		var kept int
		_, err = fmt.Sscan(string(state), &kept)
		require.NoError(t, err)
		assert.Contains(t, []int{last, last + 1}, kept)
		require.NoError(t, d.Close())
	}
}

// saveForEver saves numbers and announces each when it is durable.
func saveForEver(dir string) {
	d, err := Open(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := 1; ; i++ {
		if err := d.Save("a", fmt.Appendf(nil, "%d", i)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%d\n", i)
	}
}
