package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// markdown writes the page that is docs/BENCH.md.
func (r *result) markdown(f *os.File) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# iserd beside other targets\n\nMade by `make bench-peers` on %s: %s.\n", r.Date.Format("2006-01-02 15:04 MST"), r.Machine)
	fmt.Fprintf(&b, "%s. %s\n\n", r.versions(), r.quiet())
	fmt.Fprintf(&b, "Every figure is the median of %d rounds of %v; in each round all take their turn, so that what\n", r.Rounds, r.Plan.Each)
	b.WriteString(`else the machine does disturbs them alike. Ratios are medians of the rounds' ratios; what stands in brackets is the
range. Target and client are processes of this machine, one connection a session, over loopback; files lie in tmpfs, the
same for all targets. "ram" is a disk in iserd's memory, "null" is stgt's store that moves no data. The client is
libiscsi (` + "`.ci/bench/load.c`" + `) unless it says "our client".

![our ratios](bench.svg)

## What we want to reach

| what | ours | | against | | ratio | aim | met |
|---|---|---|---|---|---|---|---|
`)
	for _, o := range r.outcomes() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | **%.2f** (%.2f-%.2f) | %s | %s |\n", o.what, o.aim.ours, o.ours, o.aim.theirs, o.theirs,
			o.ratio.median, o.ratio.least, o.ratio.most, o.bound(), o.verdict())
	}
	for _, g := range []struct {
		title string
		in    func(workload) bool
		m     metric
	}{
		{"4 KiB at random places: I/Os a second", func(w workload) bool { return w.Bytes == 4096 }, iops},
		{"In sequence: MB a second", func(w workload) bool { return w.Bytes > 4096 }, mbs},
		{"Latency: median, microseconds", anything, p50},
		{"Latency: 99th percentile, microseconds", anything, func(s sample) float64 { return s.P99 }},
		{"Latency: 99.9th percentile, microseconds", anything, func(s sample) float64 { return s.P999 }},
		{"Processor time of the target, seconds a million I/Os", anything, targetCPU},
		{"Processor time of the client, seconds a million I/Os", anything, func(s sample) float64 { return s.ClientCPU }},
	} {
		r.table(&b, g.title, g.in, g.m)
	}
	r.limitsTo(&b)
	r.memoryTo(&b)
	_, err := f.WriteString(b.String())
	return err
}

// quietLoad is a load average up to which the machine was left to the measurement: a target and a client.
const quietLoad = 3

// quiet says whether others had the machine as well.
func (r *result) quiet() string {
	s := fmt.Sprintf("Load average %.1f before and %.1f after.", r.Load[0], r.Load[1])
	if r.Load[0] > quietLoad {
		s += "\n**Others used the machine meanwhile: the ranges are wide, and what has to wake up often is slower than it is.**"
	}
	return s
}

func (r *result) versions() string {
	var vs []string
	for name, v := range r.Versions {
		vs = append(vs, name+" "+v)
	}
	slices.Sort(vs)
	return strings.Join(vs, ", ")
}

// present are the columns that have samples.
func (r *result) present() (names []string) {
	for _, c := range columns {
		if slices.ContainsFunc(r.Series, func(s series) bool { return s.Subject == c && len(s.Samples) > 0 }) {
			names = append(names, c)
		}
	}
	return names
}

func (r *result) table(b *strings.Builder, title string, in func(workload) bool, m metric) {
	names := r.present()
	fmt.Fprintf(b, "\n## %s\n\n| workload | %s |\n|---|%s\n", title, strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, w := range r.Plan.workloads() {
		if !in(w) {
			continue
		}
		fmt.Fprintf(b, "| %s |", w)
		for _, n := range names {
			if s := r.find(n, w.String()); s == nil {
				b.WriteString(" - |")
			} else {
				v := s.of(m)
				fmt.Fprintf(b, " %s (%s-%s) |", number(v.median), number(v.least), number(v.most))
			}
		}
		b.WriteByte('\n')
	}
}

func (r *result) limitsTo(b *strings.Builder) {
	b.WriteString("\n## What bare sockets do between two processes\n\n| what | MB/s | mean, us |\n|---|---|---|\n")
	for _, w := range r.Plan.limits() {
		s := r.find(bare.name, w.String())
		switch {
		case s == nil:
		case w.Bytes > message:
			v := s.of(mbs)
			fmt.Fprintf(b, "| %s | %s (%s-%s) | |\n", w.Mode, number(v.median), number(v.least), number(v.most))
		default:
			v := s.of(mean)
			fmt.Fprintf(b, "| %s, %s there and back | | %s (%s-%s) |\n", w.Mode, size(w.Bytes), number(v.median), number(v.least), number(v.most))
		}
	}
}

func (r *result) memoryTo(b *strings.Builder) {
	b.WriteString("\n## Memory of the target, MiB\n\nThe ram disks of iserd are in its peak.\n\n| | peak | an idle session |\n|---|---|---|\n")
	mib := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", v/(1<<20))
	}
	for _, m := range r.Memory {
		fmt.Fprintf(b, "| %s | %s | %s |\n", m.Subject, mib(float64(m.Peak)), mib(m.Idle))
	}
}
