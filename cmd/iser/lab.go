package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goiser/goiser/cmd/iser/lab"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

const labHelp = `Replays the known hazards of storage over RDMA: named scenarios on the real engines and the real RoCE provider over a
simulated network, in this process and in virtual time; no root, no network, no device. Each scenario has negative
controls: the same run with the rule that protects broken on purpose, by what stands between the parts. The checkers
must see nothing in the scenario and something in each control: a scenario that cannot fail proves nothing.

A seed decides all chance: the network's, the scenario's and its faults'. Goroutines take turns on one processor, and
the same happens again, to the packet, nearly always; what the Go scheduler decides by itself is the rest.
`

func (a *app) labCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "lab", Short: "Replay the hazards of storage over RDMA, and what rules them out", Long: labHelp,
		Example: "  iser lab list\n  iser lab explain lost-send-ack\n  iser lab run lost-send-ack --svg picture.svg\n" +
			"  iser lab run write-then-send --control late-placement\n  iser lab run --all --seeds 200",
	}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List the scenarios and their negative controls", Args: exactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error { return a.labList() },
	}, &cobra.Command{
		Use: "explain NAME", Short: "Say what happened in the field, what the wire does, and which rule prevents it",
		Args: exactArgs(1, "the name of a scenario"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := labScenario(args[0])
			if err == nil {
				_, err = fmt.Fprint(a.out, s.Explain())
			}
			return err
		},
	}, a.labRunCmd())
	return c
}

func labScenario(name string) (*lab.Scenario, error) {
	if s := lab.Find(name); s != nil {
		return s, nil
	}
	return nil, coded(exitNotFound, fmt.Errorf("there is no scenario %q: iser lab list has their names", name))
}

// labFlags are the flags of iser lab run.
type labFlags struct {
	all, failFast bool
	seed, seeds   uint64
	control, svg  string
	scenarios     []*lab.Scenario
	timeline      bool
}

func (a *app) labRunCmd() *cobra.Command {
	var f labFlags
	c := &cobra.Command{
		Use: "run NAME|--all", Short: "Run scenarios: the rules hold, and each negative control is caught",
		Long: labHelp + `
One scenario with one seed shows its time line: what both ends posted, saw completed and delivered, what was placed in
memory, and each packet, with tag, key, address, length and the data's first word. --control shows a control's.

Exit codes: 0 all clean and all controls caught; 10 not so.`,
		Args: func(_ *cobra.Command, args []string) error {
			if f.all == (len(args) == 1) || len(args) > 1 {
				return usage(errors.New("want the name of one scenario, or --all"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return err
			}
			return a.labRun(cmd.Context(), &f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.all, "all", false, "run every scenario")
	fl.Uint64Var(&f.seeds, "seeds", 1, "how many seeds to run, from --seed on")
	fl.Uint64Var(&f.seed, "seed", 1, "the first seed")
	fl.StringVar(&f.control, "control", "", "run only this negative control, or none: only what is not broken")
	fl.StringVar(&f.svg, "svg", "", "draw the time line as a sequence diagram in this `FILE`; one scenario, one seed")
	fl.BoolVar(&f.failFast, "fail-fast", false, "stop at the first run that is not good")
	return c
}

func (f *labFlags) check(args []string) error {
	switch {
	case f.seeds < 1:
		return usage(errors.New("--seeds 0: want at least one"))
	case f.seed > f.seed+f.seeds:
		return usage(fmt.Errorf("--seed %d --seeds %d: there are no such seeds", f.seed, f.seeds))
	}
	f.scenarios = lab.Scenarios()
	if !f.all {
		s, err := labScenario(args[0])
		if err != nil {
			return err
		}
		f.scenarios = []*lab.Scenario{s}
	}
	f.timeline = !f.all && f.seeds == 1
	if f.svg != "" && !f.timeline {
		return usage(errors.New("--svg draws one scenario with one seed"))
	}
	if f.control != "" && f.control != lab.NoControl && f.all {
		return usage(errors.New("--control wants the name of a scenario"))
	}
	return nil
}

// A labReport is what iser lab run says.
type labReport struct {
	Seed    uint64      `json:"seed"`
	Seeds   uint64      `json:"seeds"`
	Seconds float64     `json:"seconds"`
	Good    bool        `json:"good"`
	Runs    []lab.Tally `json:"runs"`
	SVG     string      `json:"svg,omitempty"`
}

func (a *app) labRun(ctx context.Context, f *labFlags) error {
	began := time.Now()
	p := a.progress("lab", 0)
	tallies, err := lab.Run(ctx, lab.Options{
		Scenarios: f.scenarios, Seed: f.seed, Seeds: f.seeds, Control: f.control, FailFast: f.failFast, Record: f.timeline,
		Progress: p.count,
	})
	p.finish()
	if err != nil && len(tallies) == 0 {
		return usage(err)
	}
	r := labReport{Seed: f.seed, Seeds: f.seeds, Seconds: time.Since(began).Seconds(), Good: true, Runs: tallies, SVG: f.svg}
	bad := 0
	for i := range tallies {
		if tallies[i].Good < tallies[i].Runs {
			bad++
		}
	}
	r.Good = bad == 0 && err == nil
	if f.svg != "" {
		if err := saveDiagram(f.svg, tallies[0].Last); err != nil {
			return err
		}
	}
	if perr := a.printLab(f, &r); perr != nil {
		return perr
	}
	if bad > 0 {
		return coded(exitMismatch, fmt.Errorf("%d of %d scenarios and controls are not as they must be", bad, len(tallies)))
	}
	return err
}

// saveDiagram draws the first time line.
func saveDiagram(name string, r *lab.Result) error {
	out, err := os.Create(name)
	if err != nil {
		return coded(exitOther, fmt.Errorf("diagram: %w", err)) // else taken for the network's
	}
	if err := errors.Join(r.SVG(out), out.Close()); err != nil {
		return coded(exitOther, fmt.Errorf("diagram: %w", err))
	}
	return nil
}

func (a *app) printLab(f *labFlags, r *labReport) error {
	if a.json() {
		return a.printJSON(r)
	}
	if last := r.Runs[0].Last; f.timeline && last != nil {
		if err := last.Text(a.out); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	for i := range r.Runs {
		a.printTally(&r.Runs[i])
	}
	_, err := fmt.Fprintf(a.out, "%d scenarios, seeds %d to %d, %.1f s\n", len(f.scenarios), r.Seed, r.Seed+r.Seeds-1, r.Seconds)
	return err
}

func (a *app) printTally(t *lab.Tally) {
	name, good := t.Scenario, "clean"
	if t.Control != "" {
		name, good = "  without: "+t.Control, "caught"
	}
	fmt.Fprintf(a.out, "%-34s %s %d of %d", name, good, t.Good, t.Runs)
	if t.Sight != "" {
		fmt.Fprintf(a.out, "  (%s)", firstLine(t.Sight, 90))
	}
	fmt.Fprintln(a.out)
	if t.Bad == nil {
		return
	}
	again := fmt.Sprintf("iser lab run %s --seed %d", t.Scenario, t.Bad.Seed)
	if t.Control != "" {
		again += " --control " + t.Control
	}
	fmt.Fprintf(a.out, "    NOT %s with seed %d (%s)\n", good, t.Bad.Seed, again)
	for _, w := range t.Bad.Wrongs {
		fmt.Fprintf(a.out, "    %s\n", w)
	}
}

// firstLine is s, cut to so many bytes or a little less.
func firstLine(s string, n int) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "..."
	}
	return s
}

// labEntry is a scenario as listed.
type labEntry struct {
	Name     string        `json:"name"`
	Title    string        `json:"title"`
	Controls []lab.Control `json:"controls"`
}

func (a *app) labList() error {
	var all []labEntry
	for _, s := range lab.Scenarios() {
		all = append(all, labEntry{s.Name, s.Title, s.Controls})
	}
	if a.json() {
		return a.printJSON(all)
	}
	t := a.table("SCENARIO", "HAZARD", "NEGATIVE CONTROLS")
	for _, e := range all {
		var names []string
		for _, c := range e.Controls {
			names = append(names, c.Name)
		}
		t.AppendRow(table.Row{e.Name, e.Title, strings.Join(names, ", ")})
	}
	t.Render()
	return nil
}
