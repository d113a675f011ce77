package verify

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// fewKept is how many mismatches of each kind are kept, with the bytes expected and found, if the plan does not say.
const fewKept = 16

// A Bad is one wrong sector.
type Bad struct {
	*stamp.Mismatch
	// Seconds is when it was read, since the start.
	Seconds float64 `json:"seconds"`
	// Text says it in words.
	Text string `json:"text"`
	// File has the bytes expected and then those found, if they were saved.
	File string `json:"file,omitempty"`
}

// A Result is what a verification found.
type Result struct {
	Seed         uint64  `json:"seed"`
	Runs         int     `json:"runs"` // begun
	Ranges       []Range `json:"ranges"`
	Jobs         int     `json:"jobs"`
	Depth        int     `json:"depth"`
	WrittenBytes int64   `json:"written_bytes"`
	ReadBytes    int64   `json:"read_bytes"`
	WriteSeconds float64 `json:"write_seconds"`
	ReadSeconds  float64 `json:"read_seconds"`
	// ZeroedBytes and UnmappedBytes were zeroed and unmapped; of the latter KeptBytes were found as they had been.
	ZeroedBytes   int64 `json:"zeroed_bytes,omitempty"`
	UnmappedBytes int64 `json:"unmapped_bytes,omitempty"`
	KeptBytes     int64 `json:"unmapped_but_kept_bytes,omitempty"`
	// Unknown counts the requests of which it is not known whether they were done, since their session was lost.
	Unknown int64 `json:"outcome_unknown,omitempty"`
	// Rewritten counts the times that a run was written again, because what had been written could have been lost with
	// the disk's cache; CacheDoubtful says that it was checked although that was still so.
	Rewritten     int  `json:"rewritten,omitempty"`
	CacheDoubtful bool `json:"cache_doubtful,omitempty"`
	// TimeUp says that the time was up before the last run was whole.
	TimeUp bool `json:"time_up"`
	// Mixed counts, with Overlap, the sectors that were found to mix writes which overlapped. They are not wrong.
	Mixed int64 `json:"mixed_sectors,omitempty"`
	// Wrong counts the wrong sectors, Kinds by kind; Bad are the first of each kind.
	Wrong int64                `json:"mismatches"`
	Kinds map[stamp.Kind]int64 `json:"kinds,omitempty"`
	Bad   []Bad                `json:"first_mismatches,omitempty"`
}

// A recorder gathers what workers find.
type recorder struct {
	start time.Time

	mu   sync.Mutex
	res  Result
	kept map[stamp.Kind]int
	most int // kept of each kind
	heat *Heat
	done int64
	tick func(doneBytes int64)
}

func newRecorder(p *Plan, jobs int) *recorder {
	most := p.Keep
	if most == 0 {
		most = fewKept
	}
	return &recorder{
		start: time.Now(), most: most, kept: make(map[stamp.Kind]int), heat: newHeat(p.Ranges), tick: func(int64) {},
		res: Result{Seed: p.Seed, Ranges: p.Ranges, Jobs: jobs, Depth: p.Depth, Kinds: make(map[stamp.Kind]int64)},
	}
}

// wrote and read count a request that has ended.
func (r *recorder) wrote(q Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.WrittenBytes += q.Len()
	r.progressLocked(q.Len())
}

func (r *recorder) read(q Range) {
	since := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.ReadBytes += q.Len()
	r.heat.read(q, since)
	r.progressLocked(q.Len())
}

func (r *recorder) progressLocked(n int64) {
	r.done += n
	r.tick(r.done)
}

// bad records a wrong sector.
func (r *recorder) bad(m *stamp.Mismatch) {
	since := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Wrong++
	r.res.Kinds[m.Kind]++
	r.heat.bad(m, since)
	if r.kept[m.Kind] < r.most {
		r.kept[m.Kind]++
		r.res.Bad = append(r.res.Bad, Bad{Mismatch: m, Seconds: since.Seconds(), Text: m.String()})
	}
}

// mixture records a sector that mixes writes which overlapped.
func (r *recorder) mixture() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Mixed++
}

// befell counts what was zeroed or unmapped.
func (r *recorder) befell(f fate, q Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f {
	case zeroed:
		r.res.ZeroedBytes += q.Len()
	case unmapped:
		r.res.UnmappedBytes += q.Len()
	}
}

// keptMapped counts bytes that were unmapped and are as before.
func (r *recorder) keptMapped(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.KeptBytes += n
}

// unknown counts a request whose outcome is not known.
func (r *recorder) unknown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Unknown++
}

// result is a copy of what was found until now.
func (r *recorder) result() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.res
	res.Kinds, res.Bad = maps.Clone(res.Kinds), slices.Clone(res.Bad)
	return res
}
