package verify

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"
)

// A State is where a verification is, for another one to go on there. What it says to be written was flushed before it
// was said: a target that loses power in between loses nothing that will be read. What was under way is done again.
type State struct {
	Plan Plan `json:"plan"`
	// Run counts from 1; Reading is whether its Slots slots are written and being read; Done slots of what goes on are
	// done, in its order. With Overlap they are windows, and Clock is the time of the history.
	Run     uint64 `json:"run"`
	Reading bool   `json:"reading"`
	Slots   int64  `json:"slots"`
	Done    int64  `json:"done"`
	Clock   uint64 `json:"clock"`
	// Result is what was found until then, without the bytes of mismatches.
	Result Result `json:"result"`
}

// ErrOtherPlan is returned for a state that another plan made.
var ErrOtherPlan = errors.New("the state is of another verification: other ranges, sizes, order or seed")

// saveEvery is how often the state is saved while a pass goes on. stopTime is how long a pass that was stopped may take
// to flush what it has written.
const (
	saveEvery = 5 * time.Second
	stopTime  = 5 * time.Second
)

// keeper saves the state now and then.
type keeper struct {
	save   func(State) error // nil: nothing is saved
	saving sync.Mutex        // is held by who saves
	last   time.Time
	pos    State // of the pass that goes on, but for Done and Result; written between passes
}

// Keep has Run tell its state now and then, and when it ends with an error or when ctx ends. An error of save ends the Run.
// Call it before Run.
func (r *Runner) Keep(save func(State) error) {
	r.keeper.save, r.keeper.last = save, time.Now()
}

// Resume has Run go on where a state was. How many requests are in flight, how long it may take and how many mismatches
// are kept may differ from then.
func (r *Runner) Resume(s State) error {
	then, now := s.Plan, r.plan
	then.Depth, then.Time, then.Runs, then.Keep = now.Depth, now.Time, now.Runs, now.Keep
	slots := newLayout(now.Ranges, int64(now.RequestBytes)).slots
	if !reflect.DeepEqual(then, now) || s.Run < 1 || s.Done < 0 || s.Done > slots || s.Slots < 0 || s.Slots > slots {
		return ErrOtherPlan
	}
	r.pos = s
	jobs := r.res.Jobs
	if s.Result.Kinds == nil {
		s.Result.Kinds = r.res.Kinds
	}
	r.res = s.Result
	r.res.Jobs, r.res.Depth, r.res.TimeUp = jobs, now.Depth, false
	for _, b := range s.Result.Bad {
		r.kept[b.Kind]++
	}
	return nil
}

// due saves if it is time to, and nobody else does.
func (r *Runner) due(ctx context.Context, done func() int64) error {
	if r.save == nil || !r.saving.TryLock() {
		return nil
	}
	defer r.saving.Unlock()
	if time.Since(r.last) < saveEvery {
		return nil
	}
	return r.saveLocked(ctx, done())
}

// stopped saves where a pass has ended, whole or not. It is the disk that decides whether that can be: if it does not flush
// any more, the state saved last stands.
func (r *Runner) stopped(ctx context.Context, done int64, err error) error {
	if r.save == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	r.saving.Lock()
	defer r.saving.Unlock()
	if serr := r.saveLocked(ctx, done); err == nil {
		err = serr
	}
	return err
}

func (r *Runner) saveLocked(ctx context.Context, done int64) error {
	if !r.pos.Reading {
		if err := r.flush(ctx); err != nil {
			return err
		}
		if r.doubtful.Load() { // this run is written again
			r.last = time.Now()
			return nil
		}
	}
	s := r.pos
	s.Plan, s.Done, s.Result = r.plan, done, r.result()
	r.last = time.Now()
	return r.save(s)
}
