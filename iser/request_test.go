package iser

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every order of the events of a request: each of its things is given back exactly once, never early.
func TestRequestInEveryOrder(t *testing.T) {
	type step struct {
		name string
		do   func(*request) action
		can  func(*request) bool
	}
	over := func(r *request) bool { return r.answered || r.forgotten }
	steps := []step{
		{"send", func(r *request) action { r.sending(); return 0 }, func(r *request) bool { return r.queued && r.sends < 2 }},
		{"all sent", (*request).allSent, func(r *request) bool { return r.queued }},
		{"sent", (*request).sent, func(r *request) bool { return r.sends > 0 }},
		{"answer", (*request).answer, func(r *request) bool { return !over(r) }},
		{"forget", (*request).forget, func(r *request) bool { return !r.forgotten }},
		{"detach", func(r *request) action { r.detached = true; return 0 }, func(r *request) bool { return !r.detached }},
		{"die", (*request).die, func(*request) bool { return true }},
	}
	type record struct{ put, lose, copied, released int }
	type state struct {
		r    request
		got  record
		dead bool
	}
	seen := map[state]bool{}
	var walk func(r request, got record, dead bool, path string)
	walk = func(r request, got record, dead bool, path string) {
		if seen[state{r, got, dead}] {
			return
		}
		seen[state{r, got, dead}] = true
		require.LessOrEqual(t, got.put+got.lose, 1, path)
		require.LessOrEqual(t, got.released, 1, path)
		require.Equal(t, got.released == 1, r.released, path)
		if !dead {
			// Never early, never late.
			ended := over(&r) && r.sends == 0 && !r.queued
			require.Equal(t, ended, got.released == 1, path)
			require.Equal(t, r.answered, got.put == 1, path)
			require.Equal(t, r.forgotten && !r.answered, got.lose == 1, path)
		}
		for _, s := range steps {
			if !s.can(&r) || dead && s.name != "sent" && s.name != "die" {
				continue
			}
			next, g := r, got
			act := s.do(&next)
			if act&actPut != 0 {
				g.put++
			}
			if act&actLose != 0 {
				g.lose++
			}
			if act&actCopy != 0 {
				g.copied++
				require.Equal(t, "answer", s.name)
				require.False(t, r.detached, path)
			}
			if act&actRelease != 0 {
				g.released++
			}
			walk(next, g, dead || s.name == "die", path+", "+s.name)
		}
	}
	walk(request{queued: true, pooled: true}, record{}, false, "")
	require.Greater(t, len(seen), 50)
}

func TestRequestPanicsOnWhatCannotBe(t *testing.T) {
	assert.Panics(t, func() { (&request{}).sent() })
	assert.Panics(t, func() { (&request{answered: true}).answer() })
	assert.Panics(t, func() { (&request{forgotten: true}).answer() })
}

func TestQueueKeepsOrder(t *testing.T) {
	var q queue[int]
	next, want := 0, 0
	for range 100 {
		for range 7 {
			q.push(next)
			next++
		}
		for range 6 {
			require.Equal(t, want, *q.front())
			require.Equal(t, want, q.pop())
			want++
		}
	}
	require.Equal(t, 100, q.len())
	q.remove(func(v int) bool { return v%2 == 0 })
	require.Equal(t, 50, q.len())
	for q.len() > 0 {
		v := q.pop()
		require.Equal(t, 1, v%2, fmt.Sprint(v))
		require.GreaterOrEqual(t, v, want)
		want = v
	}
}
