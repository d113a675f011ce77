package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/cmd/iser/bench"
)

// benchVersion is that of bench's JSON (docs/IOBENCH.md): it goes up when a field changes its meaning or goes away.
const benchVersion = 1

// A benchSide is the result of one direction. Latencies are in microseconds.
type benchSide struct {
	IOs       int64         `json:"ios"`
	Bytes     int64         `json:"bytes"`
	IOPS      float64       `json:"iops"`
	BytesPerS float64       `json:"bytes_per_second"`
	Min       float64       `json:"lat_us_min"`
	P50       float64       `json:"lat_us_p50"`
	P90       float64       `json:"lat_us_p90"`
	P95       float64       `json:"lat_us_p95"`
	P99       float64       `json:"lat_us_p99"`
	P999      float64       `json:"lat_us_p999"`
	P9999     float64       `json:"lat_us_p9999"`
	Max       float64       `json:"lat_us_max"`
	Mean      float64       `json:"lat_us_mean"`
	StdDev    float64       `json:"lat_us_stddev"`
	Slat      float64       `json:"slat_us_mean"`
	Clat      float64       `json:"clat_us_mean"`
	Series    []bench.Point `json:"series,omitempty"`
}

// A benchReport is what bench says of one target.
type benchReport struct {
	Version  int        `json:"version"`
	URL      string     `json:"url"`
	RW       string     `json:"rw"`
	BS       int        `json:"bs"`
	BSMax    int        `json:"bs_max"`
	Depth    int        `json:"depth"`
	Jobs     int        `json:"jobs"`
	Seconds  float64    `json:"seconds"`
	CPU      float64    `json:"cpu_seconds"`
	Verified bool       `json:"verified"`
	Read     *benchSide `json:"read"`
	Write    *benchSide `json:"write"`
}

func newBenchReport(b *benched, f *benchFlags, p bench.Plan, r *bench.Result) *benchReport {
	return &benchReport{
		Version: benchVersion, URL: b.url, RW: f.rw, BS: p.MinBytes, BSMax: p.MaxBytes, Depth: f.depth, Jobs: f.jobs,
		Seconds: r.Elapsed.Seconds(), CPU: r.CPU.Seconds(), Verified: f.verify,
		Read: newBenchSide(r, bench.Read), Write: newBenchSide(r, bench.Write),
	}
}

// newBenchSide is nil where nothing was done in that direction.
func newBenchSide(r *bench.Result, d bench.Direction) *benchSide {
	s := &r.Sides[d]
	if s.IOs == 0 {
		return nil
	}
	h, secs := s.Latency, max(r.Elapsed, time.Nanosecond).Seconds()
	us := func(ns float64) float64 { return ns / 1000 }
	q := func(p float64) float64 { return us(float64(h.ValueAtQuantile(p))) }
	slat := us(float64(s.MeanHanding()))
	return &benchSide{
		IOs: s.IOs, Bytes: s.Bytes, IOPS: float64(s.IOs) / secs, BytesPerS: float64(s.Bytes) / secs,
		Min: us(float64(h.Min())), P50: q(50), P90: q(90), P95: q(95), P99: q(99), P999: q(99.9), P9999: q(99.99),
		Max: us(float64(h.Max())), Mean: us(h.Mean()), StdDev: us(h.StdDev()), Slat: slat, Clat: max(us(h.Mean())-slat, 0),
	}
}

func (a *app) printBench(b *benched, f *benchFlags, p bench.Plan) error {
	rep := newBenchReport(b, f, p, b.run.Total())
	if a.json() {
		rep.addSeries(b)
		return a.printJSON(rep)
	}
	a.printSides(rep)
	return nil
}

func (r *benchReport) addSeries(b *benched) {
	for d, s := range []*benchSide{bench.Read: r.Read, bench.Write: r.Write} {
		if s != nil {
			s.Series = b.run.Series(bench.Direction(d))
		}
	}
}

func (a *app) printSides(r *benchReport) {
	for d, s := range []*benchSide{bench.Read: r.Read, bench.Write: r.Write} {
		if s == nil {
			continue
		}
		fmt.Fprintf(a.out, "%-5s  ios %s  %s/s  %s IOPS  cpu %.1f cores\n", bench.Direction(d), count(float64(s.IOs)),
			humanize.IBytes(uint64(s.BytesPerS)), count(s.IOPS), r.CPU/max(r.Seconds, 1e-9))
		fmt.Fprintf(a.out, "lat us min %.0f  p50 %.0f  p90 %.0f  p99 %.0f  p99.9 %.0f  p99.99 %.0f  max %.0f  mean %.0f  stdev %.0f\n",
			s.Min, s.P50, s.P90, s.P99, s.P999, s.P9999, s.Max, s.Mean, s.StdDev)
		fmt.Fprintf(a.out, "       slat %.1f  clat %.1f\n", s.Slat, s.Clat)
	}
}

// count is a number in a few digits: 999, 20.1k, 2.08M.
func count(n float64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%.0f", n)
	case n < 1_000_000:
		return fmt.Sprintf("%.1fk", n/1e3)
	default:
		return fmt.Sprintf("%.2fM", n/1e6)
	}
}

// liveBench redraws a line about the turn that runs, on a terminal, until the function that it returns is called.
func (a *app) liveBench(b *benched, f *benchFlags, p bench.Plan) (stop func()) {
	bar := a.progress(f.title(), 0)
	if !bar.live {
		return func() {}
	}
	before, done, ended := b.run.Live(), make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				bar.show(benchLine(f, p, before, b.run.Live(), now.Sub(start)))
			case <-done:
				bar.finish()
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// barCells is the length of the bar.
const barCells = 12

// benchLine is the live line at a time of a turn.
func benchLine(f *benchFlags, p bench.Plan, before, now bench.Live, at time.Duration) string {
	whole := p.Ramp + p.Time
	part := min(float64(at)/float64(whole), 1)
	full := int(part * barCells)
	bar := strings.Repeat("#", full) + strings.Repeat("-", barCells-full)
	line := fmt.Sprintf("%s  [%s] %.0f%%", f.title(), bar, part*100)
	if secs := (at - p.Ramp).Seconds(); secs > 0 {
		line += fmt.Sprintf("  %s/s  %s IOPS", humanize.IBytes(uint64(float64(now.Bytes-before.Bytes)/secs)), count(float64(now.IOs-before.IOs)/secs))
		if now.P99 > 0 {
			line += fmt.Sprintf("  p99 %dus", now.P99.Microseconds())
		}
	} else {
		line += "  ramp"
	}
	return line + fmt.Sprintf("  eta %v", max(whole-at, 0).Round(time.Second))
}

// histTicks is how finely a percentile file goes towards the largest latency: that is HdrHistogram's own default.
const histTicks = 5

// saveHists writes one file for each target and direction. Where there are more than one their names tell which, before
// the extension: run.b.write.hgrm.
func saveHists(path string, all []*benched) error {
	type named struct {
		name string
		h    *hdrhistogram.Histogram
	}
	var hists []named
	for i, b := range all {
		for d, s := range b.run.Total().Sides {
			if s.IOs == 0 {
				continue
			}
			name := "." + bench.Direction(d).String()
			if len(all) > 1 {
				name = "." + string(rune('a'+i)) + name
			}
			hists = append(hists, named{name, s.Latency})
		}
	}
	for _, n := range hists {
		to := path
		if ext := filepath.Ext(path); len(hists) > 1 {
			to = strings.TrimSuffix(path, ext) + n.name + ext
		}
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = n.h.PercentilesPrint(f, histTicks, 1000) // in microseconds
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func saveBenchSVG(path, title string, all []*benched) error {
	var lines []bench.Line
	for _, b := range all {
		for d, s := range b.run.Total().Sides {
			if s.IOs > 0 {
				lines = append(lines, bench.Line{Name: b.url + " " + bench.Direction(d).String(), Points: b.run.Series(bench.Direction(d))})
			}
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(bench.SVG(f, title, lines), f.Close())
}
