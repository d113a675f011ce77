package lab

import (
	"context"
	"embed"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// A Scenario is one hazard, replayed.
type Scenario struct {
	Name  string
	Title string
	// Controls each break what protects, in another way.
	Controls []Control

	set func(*settings, *rand.Rand)
	run func(context.Context, *world)
}

// A Control is a run with the protecting rule broken on purpose.
type Control struct {
	Name string `json:"name"`
	// Breaks says in words what is broken.
	Breaks string `json:"breaks"`

	plant func(*settings)
	sees  string // what the checker must say
	races bool   // it makes a data race, of which the race detector would tell as well
}

//go:embed explain/*.txt
var texts embed.FS

// Explain is the scenario's page: what happened in the field, what the wire does, which rule prevents it.
func (s *Scenario) Explain() string {
	b, err := texts.ReadFile("explain/" + s.Name + ".txt")
	if err != nil {
		panic(fmt.Sprintf("lab: scenario %s has no page: %v", s.Name, err))
	}
	return string(b)
}

// Find is the scenario with a name, nil if there is none.
func Find(name string) *Scenario {
	all := Scenarios()
	if i := slices.IndexFunc(all, func(s *Scenario) bool { return s.Name == name }); i >= 0 {
		return all[i]
	}
	return nil
}

// control is the control with a name, nil if there is none.
func (s *Scenario) control(name string) *Control {
	if i := slices.IndexFunc(s.Controls, func(c Control) bool { return c.Name == name }); i >= 0 {
		return &s.Controls[i]
	}
	return nil
}

// A Result is what one run has shown.
type Result struct {
	Scenario string `json:"scenario"`
	Control  string `json:"control,omitempty"` // empty: nothing was broken
	Seed     uint64 `json:"seed"`
	// Wrongs is what the checkers saw, first things first.
	Wrongs []string `json:"wrongs,omitempty"`
	// Good: a clean run saw nothing, a control's what it must.
	Good   bool    `json:"good"`
	Events []Event `json:"events,omitempty"`
	// Unrecorded is how many events came after the time line was full.
	Unrecorded int `json:"unrecorded,omitempty"`

	sight string // of Wrongs: what a control's checker must say
}

// one runs a scenario with a control, or none if nil.
func (b *bench) one(s *Scenario, c *Control, seed uint64, record bool) Result {
	r := Result{Scenario: s.Name, Seed: seed}
	var rec *recorder
	if record {
		rec = &recorder{}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{settings: defaults(), seed: seed, rng: rng, rec: rec}
	s.set(&w.settings, rng)
	if c != nil {
		r.Control = c.Name
		c.plant(&w.settings)
	}
	b.run(func() { w.live(s) })
	r.Wrongs = w.wrongs
	if c == nil {
		r.Good = len(r.Wrongs) == 0
	} else if i := slices.IndexFunc(r.Wrongs, func(t string) bool { return strings.Contains(t, c.sees) }); i >= 0 {
		r.Good, r.sight = true, r.Wrongs[i]
	}
	if rec != nil {
		r.Events, r.Unrecorded = rec.events, rec.lost
	}
	return r
}

// live is a world's life.
func (w *world) live(s *Scenario) {
	ctx, stop := context.WithTimeout(context.Background(), deadline)
	defer stop()
	err := w.build(ctx)
	if err == nil {
		w.rec.start()
		w.hostLayer.arm(true)
		w.targetLayer.arm(true)
		s.run(ctx, w)
	} else {
		w.fail("set up: %v", err)
	}
	if err := w.close(); err != nil {
		w.fail("close: %v", err)
	}
}

// Options of Run.
type Options struct {
	Scenarios []*Scenario
	// Seed is the first of Seeds.
	Seed, Seeds uint64
	// Control, if not empty, runs only that control; "none" only what is not broken. Both need one scenario.
	Control string
	// FailFast ends everything at the first run that is not good.
	FailFast bool
	// Record keeps the time lines, in Tally.Last.
	Record bool
	// Progress, if not nil, is called before each seed of each scenario.
	Progress func(done, all uint64)
}

// A Tally is what all runs of one scenario with one control, or with none, have shown.
type Tally struct {
	Scenario string `json:"scenario"`
	Control  string `json:"control,omitempty"`
	Breaks   string `json:"breaks,omitempty"`
	Runs     uint64 `json:"runs"`
	Good     uint64 `json:"good"`
	// Bad is the first run that was not good; Last the last one, if it was recorded.
	Bad  *Result `json:"first_bad,omitempty"`
	Last *Result `json:"last,omitempty"`
	// Sight is what the checker said of the first run of a control that it caught.
	Sight string `json:"sight,omitempty"`
}

// NoControl is the Options.Control for what is not broken.
const NoControl = "none"

// Run runs scenarios until ctx is done.
func Run(ctx context.Context, o Options) ([]Tally, error) {
	b := newBench()
	defer b.close()
	var all []Tally
	done, total := uint64(0), o.Seeds*uint64(len(o.Scenarios))
	for _, s := range o.Scenarios {
		tallies, err := s.tallies(o.Control)
		if err != nil {
			return nil, err
		}
		for seed := o.Seed; seed < o.Seed+o.Seeds; seed++ {
			if err := ctx.Err(); err != nil {
				return append(all, tallies...), err
			}
			if o.Progress != nil {
				o.Progress(done, total)
			}
			done++
			bad := false
			for i := range tallies {
				r := b.one(s, s.control(tallies[i].Control), seed, o.Record)
				tallies[i].add(r, o.Record)
				bad = bad || !r.Good
			}
			if bad && o.FailFast {
				return append(all, tallies...), nil
			}
		}
		all = append(all, tallies...)
	}
	return all, nil
}

// tallies are what is to be run of a scenario.
func (s *Scenario) tallies(control string) ([]Tally, error) {
	var all []Tally
	if control == "" || control == NoControl {
		all = append(all, Tally{Scenario: s.Name})
	}
	for _, c := range s.Controls {
		if control == "" || control == c.Name {
			all = append(all, Tally{Scenario: s.Name, Control: c.Name, Breaks: c.Breaks})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("scenario %s has no control %q", s.Name, control)
	}
	return all, nil
}

func (t *Tally) add(r Result, record bool) {
	t.Runs++
	if t.Sight == "" {
		t.Sight = r.sight
	}
	if r.Good {
		t.Good++
	} else if t.Bad == nil {
		bad := r
		bad.Events = nil
		t.Bad = &bad
	}
	if record {
		t.Last = &r
	}
}
