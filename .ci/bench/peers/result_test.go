package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSpreadIsMedianAndRange(t *testing.T) {
	assert.Equal(t, spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	assert.Equal(t, spread{2.5, 1, 9}, spreadOf([]float64{9, 3, 1, 2}))
}

// A round in which one of two failed says nothing of their ratio, and must not shift those after it.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	a := &series{Samples: []sample{{Round: 0, IOPS: 10}, {Round: 1, IOPS: 100}, {Round: 2, IOPS: 60}}}
	b := &series{Samples: []sample{{Round: 0, IOPS: 5}, {Round: 2, IOPS: 20}}}
	q, ok := ratio(a, b, iops)
	require.True(t, ok)
	assert.Equal(t, spread{2.5, 2, 3}, q)
	_, ok = ratio(a, nil, iops)
	assert.False(t, ok)
}

func TestClientsLastLineIsASample(t *testing.T) {
	w := workload{"read", 1 << 20, 8, 1, 1}
	s, err := parse("ready\n"+`{"seconds":2,"ios":200,"all":400,"cpu":0.1,"mean":5,"p50":4,"p99":9,"p999":10}`+"\n", w, 4e6)
	require.NoError(t, err)
	assert.Equal(t, sample{IOPS: 100, MBs: 104.8576, Mean: 5, P50: 4, P99: 9, P999: 10, TargetCPU: 10, ClientCPU: 250}, s)
	for _, bad := range []string{"", "ready\n", `{"seconds":2,"ios":0,"all":0}`} {
		_, err := parse(bad, w, 0)
		assert.Error(t, err, bad)
	}
}

// Every aim must be measured by the full plan: one that is not would be missing in the page without a word.
func TestEveryAimIsMeasured(t *testing.T) {
	r := &result{Plan: full}
	var subjects []*subject
	for _, name := range columns {
		subjects = append(subjects, &subject{name: name, fits: anything})
	}
	for _, x := range full.runs(subjects) {
		s := sample{IOPS: 4, MBs: 4, Mean: 4, TargetCPU: 4}
		r.Series = append(r.Series, series{Subject: x.subject.name, Workload: x.workload.String(), Samples: []sample{s}})
	}
	assert.Len(t, r.outcomes(), len(aims()))
	dir := t.TempDir()
	for name, write := range map[string]func(*os.File) error{"a.md": r.markdown, "a.svg": r.svg, "a.json": r.json} {
		require.NoError(t, writeFile(filepath.Join(dir, name), write))
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.NotEmpty(t, text)
		assert.False(t, bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("%!")), "%s", text)
	}
}

func TestAimsAreMetOnTheirSide(t *testing.T) {
	assert.True(t, aim{least: 2}.met(2))
	assert.False(t, aim{least: 2}.met(1.9))
	assert.True(t, aim{most: 0.5}.met(0.4))
	assert.False(t, aim{most: 0.5}.met(0.6))
}
