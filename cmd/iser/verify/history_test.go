package verify

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An event is a write or a read of one sector, for the naive model: the whole past is kept.
type event struct {
	write      bool
	began, end uint64 // end 0: in flight
	gen        uint64
	narrows    bool // a read that counts as an O
	done       bool // a write that the disk has done
}

// past is the rule of history.go word by word.
type past []*event

func (p past) superseded(gen, before uint64) bool {
	for _, w := range p {
		if !w.write || w.gen != gen {
			continue
		}
		for _, o := range p {
			if o.gen != gen && (o.write || o.narrows) && o.end != 0 && o.end < before && w.end != 0 && w.end < o.began {
				return true
			}
		}
		return false
	}
	return true // no such write
}

func (p past) allowed(r *event, gen uint64) bool {
	return gen < r.end && !p.superseded(gen, r.began)
}

// world is a history of one sector and its model, side by side.
type world struct {
	t       *testing.T
	h       *history
	past    past
	gens    []uint64 // of all writes
	writes  []*event // in flight
	reads   []*event
	pending []*reading
}

func (w *world) write() {
	g, ok := w.h.beginWrite(0, 1)
	require.Equal(w.t, len(w.writes) < maxWriters, ok)
	if ok {
		e := &event{write: true, began: g, gen: g}
		w.past, w.writes, w.gens = append(w.past, e), append(w.writes, e), append(w.gens, g)
	}
}

func (w *world) ack(i int) {
	e := w.writes[i]
	w.h.endWrite(0, 1, e.gen)
	e.end = w.h.now
	w.writes = append(w.writes[:i], w.writes[i+1:]...)
}

func (w *world) read() {
	r := new(reading)
	w.h.beginRead(r, 0, 1)
	w.reads, w.pending = append(w.reads, &event{began: r.began}), append(w.pending, r)
}

// answer ends a read with a generation and says whether it was right.
func (w *world) answer(i int, gen uint64) bool {
	e, r := w.reads[i], w.pending[i]
	v := w.h.endRead(r, 0, gen)
	e.end, e.gen = w.h.now, gen
	want := w.past.allowed(e, gen)
	require.Equal(w.t, want, v.ok, "read %d to %d returned %d, past %v", e.began, e.end, gen, w.past)
	e.narrows = want && !w.past.superseded(gen, e.end)
	w.past = append(w.past, e)
	w.reads, w.pending = append(w.reads[:i], w.reads[i+1:]...), append(w.pending[:i], w.pending[i+1:]...)
	return v.ok
}

func TestHistoryIsTheRule(t *testing.T) {
	right, wrong := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := &world{t: t, h: newHistory(1, 0)}
		w.write()
		w.ack(0)
		for range 60 {
			switch k := rng.IntN(4); {
			case k == 0:
				w.write()
			case k == 1 && len(w.writes) > 0:
				w.ack(rng.IntN(len(w.writes)))
			case k == 2:
				w.read()
			case len(w.reads) > 0:
				gen := w.h.now + 100 // one that never was
				if n := len(w.gens); rng.IntN(20) > 0 {
					gen = w.gens[max(rng.IntN(n), n-1-rng.IntN(6))]
				}
				if w.answer(rng.IntN(len(w.reads)), gen) {
					right++
				} else {
					wrong++
				}
			}
		}
	}
	assert.Greater(t, right, 500)
	assert.Greater(t, wrong, 500)
}

// A disk that does each request at one moment between its beginning and its end is never blamed.
func TestHistoryNeverBlamesAGoodDisk(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := &world{t: t, h: newHistory(1, 0)}
		w.write()
		now := w.writes[0].gen
		w.ack(0)
		var got []uint64 // what each read found, 0: not yet
		for range 200 {
			switch k := rng.IntN(6); {
			case k == 0:
				w.write()
			case k == 1 && len(w.writes) > 0:
				i := rng.IntN(len(w.writes))
				if !w.writes[i].done {
					now = w.writes[i].gen
				}
				w.ack(i)
			case k == 2 && len(w.writes) > 0:
				if e := w.writes[rng.IntN(len(w.writes))]; !e.done {
					e.done, now = true, e.gen
				}
			case k == 3:
				w.read()
				got = append(got, 0)
			case k == 4 && len(got) > 0:
				if i := rng.IntN(len(got)); got[i] == 0 {
					got[i] = now
				}
			case k == 5 && len(got) > 0:
				i := rng.IntN(len(got))
				if got[i] == 0 {
					got[i] = now
				}
				v := w.h.endRead(w.pending[i], 0, got[i])
				require.True(t, v.ok, "seed %d: %d", seed, got[i])
				got, w.pending = append(got[:i], got[i+1:]...), append(w.pending[:i], w.pending[i+1:]...)
			}
		}
	}
}

func TestHistoryFindsPlantedViolations(t *testing.T) {
	start := func(t *testing.T) (w *world, first uint64) {
		w = &world{t: t, h: newHistory(1, 0)}
		w.write()
		first = w.writes[0].gen
		w.ack(0)
		return w, first
	}
	readNow := func(w *world, gen uint64) bool {
		w.read()
		return w.answer(len(w.reads)-1, gen)
	}
	t.Run("a write that was acknowledged is lost", func(t *testing.T) {
		w, first := start(t)
		w.write()
		assert.True(t, readNow(w, first), "in flight: not yet done")
		w.ack(0)
		assert.False(t, readNow(w, first))
	})
	t.Run("a version of the future", func(t *testing.T) {
		w, first := start(t)
		assert.False(t, readNow(w, first+50))
	})
	t.Run("back to the older by itself", func(t *testing.T) {
		w, _ := start(t)
		w.write()
		w.write()
		a, b := w.writes[0].gen, w.writes[1].gen
		w.ack(0)
		w.ack(0)
		assert.True(t, readNow(w, b))
		assert.False(t, readNow(w, a))
		assert.True(t, readNow(w, b))
	})
	t.Run("either of two in flight at once", func(t *testing.T) {
		w, first := start(t)
		w.write()
		w.write()
		a := w.writes[0].gen
		w.ack(1)
		w.ack(0)
		assert.True(t, readNow(w, a))
		assert.False(t, readNow(w, first))
	})
	t.Run("a read that began before may return the old", func(t *testing.T) {
		w, first := start(t)
		w.read()
		w.write()
		w.ack(0)
		assert.True(t, w.answer(0, first))
	})
}

func TestHistoryRefusesMoreWriters(t *testing.T) {
	h := newHistory(4, 0)
	for range maxWriters {
		_, ok := h.beginWrite(1, 2)
		require.True(t, ok)
	}
	_, ok := h.beginWrite(2, 2)
	assert.False(t, ok)
	_, ok = h.beginWrite(3, 1)
	assert.True(t, ok)
}

// What goes back by itself is stale even if its number is the higher one.
func TestJudgeNamesWhatIsSuperseded(t *testing.T) {
	w := &window{Runner: New(nil, Plan{Seed: 7}, nil), Range: Range{0, 512}, history: newHistory(1, 0)}
	a, _ := w.history.beginWrite(0, 1)
	b, _ := w.history.beginWrite(0, 1)
	w.history.endWrite(0, 1, b)
	w.history.endWrite(0, 1, a)
	judge := func(gen uint64) *stamp.Mismatch {
		var note reading
		var c stamp.Checker
		w.history.beginRead(&note, 0, 1)
		p := make([]byte, stamp.SectorSize)
		stamp.Fill(p, stamp.ID{Seed: 7, Generation: gen})
		return w.judge(&c, &note, 0, p, 0)
	}
	note, c, p := reading{}, stamp.Checker{}, make([]byte, stamp.SectorSize)
	w.history.beginRead(&note, 0, 1)
	old := bytes.Clone(p)
	stamp.Fill(p, stamp.ID{Seed: 7, Generation: b})
	stamp.Fill(old, stamp.ID{Seed: 7, Generation: a})
	copy(p, old[:128])
	require.Nil(t, w.judge(&c, &note, 0, p, 0), "both were in flight at once")
	assert.EqualValues(t, 1, w.res.Mixed)
	require.Nil(t, judge(a))
	m := judge(b)
	require.NotNil(t, m)
	assert.Equal(t, stamp.Stale, m.Kind)
	assert.Equal(t, a, m.Want.Generation)
	w.history.beginRead(&note, 0, 1)
	m = w.judge(&c, &note, 0, p, 0)
	require.NotNil(t, m, "a part of it is superseded")
	assert.Equal(t, stamp.Torn, m.Kind)
	m = judge(1000)
	require.NotNil(t, m)
	assert.Equal(t, stamp.Newer, m.Kind)
}
