package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/goiser/goiser/cmd/iser/bench"
	"github.com/jedib0t/go-pretty/v6/table"
)

// maxRounds bounds --rounds.
const maxRounds = 1000

// A ratio is what the rounds gave for the first target's figure divided by the second's.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// A comparison is what bench --compare says.
type comparison struct {
	Version int          `json:"version"`
	Rounds  int          `json:"rounds"`
	A       *benchReport `json:"a"`
	B       *benchReport `json:"b"`
	// Ratio has by direction and figure (iops, lat_us_p50, lat_us_p99, lat_us_mean) what A's are divided by B's.
	Ratio map[string]map[string]ratio `json:"ratio"`
}

// comparedFigures are those of which there is a ratio.
var comparedFigures = [...]struct {
	name, title string
	of          func(*benchSide) float64
}{
	{"iops", "IOPS", func(s *benchSide) float64 { return s.IOPS }},
	{"lat_us_p50", "p50 us", func(s *benchSide) float64 { return s.P50 }},
	{"lat_us_p99", "p99 us", func(s *benchSide) float64 { return s.P99 }},
	{"lat_us_mean", "mean us", func(s *benchSide) float64 { return s.Mean }},
}

// compare measures two targets in turn. All sessions stay open, so that each target's turns differ in nothing else.
func (a *app) compare(ctx context.Context, url string, f *benchFlags, p bench.Plan) (err error) {
	var all []*benched
	defer func() {
		for _, b := range all {
			err = errors.Join(err, b.Close())
		}
	}()
	for _, u := range []string{url, f.compare} {
		b, err := a.openBench(ctx, u, f, p)
		if err != nil {
			return err
		}
		a.said = false // of the second one too
		all = append(all, b)
	}
	return a.runComparison(ctx, all, f, p)
}

// runComparison measures two open targets in turn.
func (a *app) runComparison(ctx context.Context, all []*benched, f *benchFlags, p bench.Plan) error {
	var turns [2][]*bench.Result
	for n := 0; n < f.rounds && (n == 0 || ctx.Err() == nil); n++ {
		for i, b := range all {
			r, err := a.benchTurn(ctx, b, f, p)
			if err != nil {
				return err
			}
			turns[i] = append(turns[i], r)
		}
	}
	if n := len(turns[0]); ctx.Err() != nil && n > 1 { // its turns are not of one length
		turns[0], turns[1] = turns[0][:n-1], turns[1][:n-1]
	}
	if err := a.finishBench(context.WithoutCancel(ctx), all, f); err != nil {
		return err
	}
	c := &comparison{
		Version: benchVersion, Rounds: len(turns[0]),
		A: newBenchReport(all[0], f, p, all[0].run.Total()), B: newBenchReport(all[1], f, p, all[1].run.Total()),
		Ratio: ratios(turns),
	}
	if a.json() {
		c.A.addSeries(all[0])
		c.B.addSeries(all[1])
		return errors.Join(a.printJSON(c), interrupted(ctx))
	}
	a.printComparison(c)
	return interrupted(ctx)
}

// ratios divides round by round, so that what disturbs both of a round's turns disturbs the ratio little.
func ratios(turns [2][]*bench.Result) map[string]map[string]ratio {
	all := make(map[string]map[string]ratio)
	for _, d := range []bench.Direction{bench.Read, bench.Write} {
		for _, figure := range comparedFigures {
			var rs []float64
			for i := range turns[0] {
				x, y := newBenchSide(turns[0][i], d), newBenchSide(turns[1][i], d)
				if x != nil && y != nil && figure.of(y) > 0 {
					rs = append(rs, figure.of(x)/figure.of(y))
				}
			}
			if len(rs) == 0 {
				continue
			}
			if all[d.String()] == nil {
				all[d.String()] = make(map[string]ratio)
			}
			all[d.String()][figure.name] = ratio{median(rs), slices.Min(rs), slices.Max(rs)}
		}
	}
	return all
}

// median is of at least one number, which it puts in order.
func median(rs []float64) float64 {
	slices.Sort(rs)
	return (rs[(len(rs)-1)/2] + rs[len(rs)/2]) / 2
}

func (a *app) printComparison(c *comparison) {
	fmt.Fprintf(a.out, "A %s\nB %s\n", c.A.URL, c.B.URL)
	t := a.table("", "A", "B", "A/B", fmt.Sprintf("%d ROUNDS", c.Rounds))
	for d, sides := range [][2]*benchSide{bench.Read: {c.A.Read, c.B.Read}, bench.Write: {c.A.Write, c.B.Write}} {
		name := bench.Direction(d).String()
		for _, figure := range comparedFigures {
			r, ok := c.Ratio[name][figure.name]
			if !ok {
				continue
			}
			t.AppendRow(table.Row{
				name + " " + figure.title, count(figure.of(sides[0])), count(figure.of(sides[1])),
				fmt.Sprintf("%.2f", r.Median), fmt.Sprintf("%.2f to %.2f", r.Min, r.Max),
			})
		}
	}
	t.Render()
}
