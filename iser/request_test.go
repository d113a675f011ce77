package iser

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every order of the events of a request: each of its things is given back exactly once, never early. What the device
// and the peer do meanwhile is TestEveryInterleaving's.
func TestRequestInEveryOrder(t *testing.T) {
	const stag, foreign = 0x700, 0x900
	type step struct {
		name string
		do   func(*request) action
		can  func(*request) bool
	}
	over := func(r *request) bool { return r.answered || r.forgotten }
	answer := func(invalidated bool, key uint32) func(*request) action {
		return func(r *request) action {
			act, ok := r.answer(invalidated, key)
			require.True(t, ok)
			return act
		}
	}
	steps := []step{
		{"send", func(r *request) action { r.sending(); return 0 }, func(r *request) bool { return r.queued && r.sends < 2 }},
		{"all sent", (*request).allSent, func(r *request) bool { return r.queued }},
		{"sent", (*request).sent, func(r *request) bool { return r.sends > 0 }},
		{"answer", answer(false, 0), func(r *request) bool { return !over(r) }},
		{"answer and invalidate", answer(true, stag), func(r *request) bool { return !over(r) && r.key == keyOpen }},
		{"forget", (*request).forget, func(*request) bool { return true }},
		{"closed", (*request).closed, func(r *request) bool { return r.key == keyClosing }},
		{"detach", func(r *request) action { r.detached = true; return 0 }, func(r *request) bool { return !r.detached && !r.inPlace }},
		{"die", (*request).die, func(*request) bool { return true }},
	}
	type record struct{ put, lose, invalidated, copied, released int }
	type state struct {
		r    request
		got  record
		dead bool
	}
	for _, key := range []keyState{keyClosed, keyOpen, keyPermanent} {
		for _, inPlace := range []bool{false, true} {
			seen := map[state]bool{}
			var walk func(r request, got record, dead bool, path string)
			walk = func(r request, got record, dead bool, path string) {
				if seen[state{r, got, dead}] {
					return
				}
				seen[state{r, got, dead}] = true
				require.LessOrEqual(t, got.put+got.lose, 1, path)
				require.LessOrEqual(t, got.invalidated, 1, path)
				require.LessOrEqual(t, got.released, 1, path)
				require.Equal(t, got.released == 1, r.released, path)
				if inPlace && got.released == 1 { // never before the memory is out of reach, dead or not
					require.True(t, r.sends == 0 && r.key == keyClosed, path)
				}
				if !dead {
					ended := over(&r) && r.sends == 0 && !r.queued && r.key == keyClosed
					require.Equal(t, ended, got.released == 1, path)
					require.Equal(t, key != keyClosed && r.key == keyClosed && (r.answered || key == keyOpen), got.put == 1, path)
					require.Equal(t, key == keyPermanent && r.forgotten, got.lose == 1, path)
				}
				for _, s := range steps {
					if !s.can(&r) || dead && s.name != "sent" && s.name != "die" {
						continue
					}
					next, g := r, got
					act := s.do(&next)
					for bit, n := range map[action]*int{actPut: &g.put, actLose: &g.lose, actInvalidate: &g.invalidated, actCopy: &g.copied, actRelease: &g.released} {
						if act&bit != 0 {
							*n++
						}
					}
					if act&actCopy != 0 {
						require.Contains(t, s.name, "answer")
						require.False(t, r.detached, path)
					}
					walk(next, g, dead || s.name == "die", path+", "+s.name)
				}
			}
			walk(request{queued: true, key: key, stag: stag, inPlace: inPlace}, record{}, false, "")
			require.Greater(t, len(seen), 30)
		}
	}
	// The very key, while it is open.
	for _, r := range []request{
		{key: keyOpen, stag: foreign}, {key: keyClosed, stag: stag}, {key: keyPermanent, stag: stag}, {key: keyClosing, stag: stag}, {},
	} {
		before := r
		_, ok := r.answer(true, stag)
		require.False(t, ok, "%+v", before)
		require.Equal(t, before, r)
	}
}

func TestRequestPanicsOnWhatCannotBe(t *testing.T) {
	assert.Panics(t, func() { (&request{}).sent() })
	assert.Panics(t, func() { (&request{answered: true}).answer(false, 0) })
	assert.Panics(t, func() { (&request{forgotten: true}).answer(false, 0) })
	for _, k := range []keyState{keyClosed, keyOpen, keyPermanent} {
		assert.Panics(t, func() { (&request{key: k}).closed() })
	}
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
