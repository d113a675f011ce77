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
	what       content // of a write
	began, end uint64  // end 0: in flight
	gen        uint64  // of a read: what it returned, stamp.Zeroed for zeros
	unsure     bool    // a write that may have had no effect
	narrows    bool    // a read that counts as an O
	done       bool    // a write that the disk has done
}

// past is the rule of history.go word by word.
type past []*event

// is whether o, an O, is another write than w, or returned another.
func (o *event) isOtherThan(w *event) bool {
	switch {
	case o.write:
		return o != w
	case o.gen == stamp.Zeroed:
		return w.what != zeros
	}
	return o.gen != w.gen
}

func (p past) superseded(w *event, before uint64) bool {
	for _, o := range p {
		if o.isOtherThan(w) && (o.write && !o.unsure || o.narrows) && o.end != 0 && o.end < before && w.end != 0 && w.end < o.began {
			return true
		}
	}
	return false
}

// some is whether a write that a read of gen may be of is not superseded; until is when the read ended.
func (p past) some(gen, before, until uint64) bool {
	for _, w := range p {
		is := w.what == stamped && w.gen == gen || w.what == zeros && gen == stamp.Zeroed
		if w.write && is && w.began < until && !p.superseded(w, before) {
			return true
		}
	}
	return false
}

// open is whether a read may return anything.
func (p past) open(r *event) bool {
	for _, w := range p {
		if w.write && w.what == anything && w.began < r.end && !p.superseded(w, r.began) {
			return true
		}
	}
	return false
}

func (p past) allowed(r *event, gen uint64) bool { return p.some(gen, r.began, r.end) }

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

// newWorld begins with one write, which was acknowledged.
func newWorld(t *testing.T) *world {
	w := &world{t: t, h: newHistory(1, 0)}
	w.past = past{{write: true, what: anything, began: 1, end: 1, gen: 1, unsure: true}}
	w.write()
	w.ack(0)
	return w
}

func (w *world) write() { w.change(stamped, false) }

// change begins a write; unsure is whether it may have no effect, and so will always be of unmapping.
func (w *world) change(what content, unsure bool) {
	full := w.h.sects[0].full()
	g, ok := w.h.beginWrite(0, 1, what)
	require.Equal(w.t, !full, ok)
	require.True(w.t, ok || len(w.writes) == maxWriters || w.h.sects[0].n == maxVersions)
	if ok {
		e := &event{write: true, what: what, unsure: unsure || what == anything, began: g, gen: g}
		w.past, w.writes, w.gens = append(w.past, e), append(w.writes, e), append(w.gens, g)
	}
}

func (w *world) ack(i int) {
	e := w.writes[i]
	w.h.endWrite(0, 1, e.gen, !e.unsure)
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
	open := w.past.open(e)
	want := open || w.past.allowed(e, gen)
	require.Equal(w.t, want, v.ok, "read %d to %d returned %d, past %v", e.began, e.end, gen, w.past)
	e.narrows = want && !open && w.past.some(gen, e.end, e.end)
	w.past = append(w.past, e)
	w.reads, w.pending = append(w.reads[:i], w.reads[i+1:]...), append(w.pending[:i], w.pending[i+1:]...)
	return v.ok
}

func TestHistoryIsTheRule(t *testing.T) {
	for name, kinds := range map[string][]content{
		"writes":                        {stamped},
		"writes and zeros":              {stamped, stamped, zeros},
		"and what is anything":          {stamped, stamped, stamped, zeros, anything},
		"hardly a write":                {zeros, zeros, zeros, stamped},
		"hardly anything that is known": {anything, zeros, stamped},
	} {
		t.Run(name, func(t *testing.T) {
			right, wrong := 0, 0
			for seed := range uint64(300) {
				w := newWorld(t)
				w.live(rand.New(rand.NewPCG(seed, 1)), kinds, &right, &wrong)
			}
			assert.Greater(t, right, 200)
			assert.Greater(t, wrong, 200)
		})
	}
}

// live does anything, in any order, and counts the answers that were right and wrong.
func (w *world) live(rng *rand.Rand, kinds []content, right, wrong *int) {
	for range 60 {
		switch k := rng.IntN(4); {
		case k == 0:
			w.change(kinds[rng.IntN(len(kinds))], rng.IntN(3) == 0)
		case k == 1 && len(w.writes) > 0:
			w.ack(rng.IntN(len(w.writes)))
		case k == 2:
			w.read()
		case len(w.reads) > 0:
			gen := w.h.now + 100 // one that never was
			if n := len(w.gens); rng.IntN(20) > 0 {
				gen = w.gens[max(rng.IntN(n), n-1-rng.IntN(6))]
				if len(kinds) > 1 && rng.IntN(3) == 0 {
					gen = stamp.Zeroed
				}
			}
			if !w.stampedOrZeros(gen) {
				continue // a generation that left no stamp is read by nobody
			}
			if w.answer(rng.IntN(len(w.reads)), gen) {
				*right++
			} else {
				*wrong++
			}
		}
	}
}

func (w *world) stampedOrZeros(gen uint64) bool {
	for _, e := range w.past {
		if e.write && e.gen == gen && e.what != stamped {
			return false
		}
	}
	return true
}

// A disk that does each request at one moment between its beginning and its end is never blamed; nor if it does not do
// what may have no effect.
func TestHistoryNeverBlamesAGoodDisk(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t)
		now := w.gens[0] // what the disk holds
		do := func(e *event) {
			switch {
			case e.done || e.unsure && rng.IntN(2) == 0:
			case e.what == stamped:
				now = e.gen
			default: // also where it may be anything
				now = stamp.Zeroed
			}
			e.done = true
		}
		var got []uint64 // what each read found, 0: not yet
		for range 200 {
			switch k := rng.IntN(6); {
			case k == 0:
				w.change([]content{stamped, stamped, stamped, zeros, anything}[rng.IntN(4+int(seed%2))], rng.IntN(3) == 0)
			case k == 1 && len(w.writes) > 0:
				i := rng.IntN(len(w.writes))
				do(w.writes[i])
				w.ack(i)
			case k == 2 && len(w.writes) > 0:
				do(w.writes[rng.IntN(len(w.writes))])
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
		w = newWorld(t)
		return w, w.gens[0]
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
	t.Run("zeroing is lost", func(t *testing.T) {
		w, first := start(t)
		w.change(zeros, false)
		assert.True(t, readNow(w, first), "in flight: not yet done")
		w.ack(0)
		assert.False(t, readNow(w, first))
		assert.True(t, readNow(w, stamp.Zeroed))
		w.write()
		w.ack(0)
		assert.False(t, readNow(w, stamp.Zeroed), "and so is the write after it")
	})
	t.Run("zeros that nobody wrote", func(t *testing.T) {
		w, _ := start(t)
		assert.False(t, readNow(w, stamp.Zeroed))
	})
	t.Run("unmapping may do nothing, but not first something and then nothing", func(t *testing.T) {
		w, first := start(t)
		w.change(zeros, true)
		w.ack(0)
		assert.True(t, readNow(w, stamp.Zeroed))
		assert.False(t, readNow(w, first))
	})
	t.Run("nor first nothing and then something", func(t *testing.T) {
		w, first := start(t)
		w.change(zeros, true)
		w.ack(0)
		assert.True(t, readNow(w, first))
		assert.False(t, readNow(w, stamp.Zeroed))
	})
	t.Run("a write of unknown outcome: old or new, until the next one is acknowledged", func(t *testing.T) {
		w, first := start(t)
		w.change(stamped, true)
		unknown := w.writes[0].gen
		w.ack(0)
		w.write()
		assert.True(t, readNow(w, first), "old")
		assert.False(t, readNow(w, unknown), "it was not done, and will not be")
		w.ack(0)
		assert.False(t, readNow(w, first))
		assert.False(t, readNow(w, unknown))
	})
	t.Run("where nothing is known anything is right, until it is written", func(t *testing.T) {
		w, first := start(t)
		w.change(anything, true)
		w.ack(0)
		assert.True(t, readNow(w, stamp.Zeroed))
		assert.True(t, readNow(w, first))
		assert.True(t, readNow(w, stamp.Zeroed))
		w.write()
		w.ack(0)
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
		_, ok := h.beginWrite(1, 2, stamped)
		require.True(t, ok)
	}
	_, ok := h.beginWrite(2, 2, stamped)
	assert.False(t, ok)
	_, ok = h.beginWrite(3, 1, stamped)
	assert.True(t, ok)
}

// What goes back by itself is stale even if its number is the higher one.
func TestJudgeNamesWhatIsSuperseded(t *testing.T) {
	w := &window{Runner: New(nil, Plan{Seed: 7}, nil), Range: Range{0, 512}, history: newHistory(1, 0)}
	a, _ := w.history.beginWrite(0, 1, stamped)
	b, _ := w.history.beginWrite(0, 1, stamped)
	w.history.endWrite(0, 1, b, true)
	w.history.endWrite(0, 1, a, true)
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
