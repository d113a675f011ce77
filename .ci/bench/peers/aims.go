package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// columns are the subjects in the order in which they take turns. Those that are compared stand beside each other.
var columns = []string{
	"stgt file", "iserd file", "gotgt file", "stgt null", "iserd ram", "iserd ram, our client", "iserd ram, our client, iSER",
}

// An aim is a figure to be reached: ours divided by theirs. Workloads may differ in a limit only.
type aim struct {
	what           string
	ours, oursWork string
	theirs, work   string
	metric         metric
	least, most    float64 // one of them, 0: none
}

func (a aim) met(ratio float64) bool {
	return a.least > 0 && ratio >= a.least || a.most > 0 && ratio <= a.most
}

func (a aim) bound() string {
	if a.least > 0 {
		return fmt.Sprintf("≥ %.1f", a.least)
	}
	return fmt.Sprintf("≤ %.1f", a.most)
}

// aims are those of our own for a machine with itself as client.
func aims() (as []aim) {
	against := func(ours, theirs string, least float64, m metric, what string, ws ...workload) {
		for _, w := range ws {
			as = append(as, aim{what + ", " + w.String(), ours, w.String(), theirs, w.String(), m, least, 0})
		}
	}
	few := []workload{{"randread", 4096, 32, 1, 1}, {"randwrite", 4096, 32, 1, 1}}
	against("iserd file", "stgt file", 2, iops, "IOPS", few...)
	for _, w := range few {
		as = append(as, aim{"CPU an I/O, " + w.String(), "iserd file", w.String(), "stgt file", w.String(), targetCPU, 0, 0.5})
	}
	against("iserd ram", "stgt null", 1.3, iops, "IOPS", few...)
	large := [2][]workload{
		{{"read", 128 << 10, 16, 1, 1}, {"read", 1 << 20, 8, 1, 1}},
		{{"write", 128 << 10, 16, 1, 1}, {"write", 1 << 20, 8, 1, 1}},
	}
	against("iserd file", "stgt file", 1.3, mbs, "bytes/s", large[0]...)
	against("iserd file", "stgt file", 1.8, mbs, "bytes/s", large[1]...)
	against("iserd file", "gotgt file", 3, mbs, "bytes/s", append(large[0], large[1]...)...)
	for _, mode := range []string{"randread", "randwrite"} {
		w := workload{mode, 4096, 1, 1, 1}.String()
		as = append(as, aim{"latency (mean), " + w, "iserd file", w, "stgt file", w, mean, 0, 1})
	}
	limit := func(ours string, w workload, limit string, bytes int, m metric, least, most float64, what string) {
		as = append(as, aim{what + ", " + w.String(), ours, w.String(), bare.name, workload{limit, bytes, 1, 1, 1}.String(), m, least, most})
	}
	for _, mode := range []string{"read", "write"} {
		limit("iserd ram", workload{mode, 1 << 20, 8, 1, 1}, streamTCP, 1<<20, mbs, 0.6, 0, "bytes/s")
	}
	limit("iserd ram, our client, iSER", workload{"read", 1 << 20, 8, 1, 1}, streamUDP, 1<<20, mbs, 0.6, 0, "bytes/s")
	for _, mode := range []string{"randread", "randwrite"} {
		limit("iserd ram, our client, iSER", workload{mode, 4096, 1, 1, 1}, roundTripUDP, message, mean, 0, 2, "latency (mean)")
	}
	against("iserd ram, our client", "iserd ram", 1.5, iops, "our client's IOPS against libiscsi's", few...)
	return as
}

// An outcome is how an aim came out.
type outcome struct {
	aim
	ours, theirs string
	ratio        spread
}

// outcomes are the aims for which there are figures.
func (r *result) outcomes() (os []outcome) {
	for _, a := range aims() {
		x, y := r.find(a.ours, a.oursWork), r.find(a.theirs, a.work)
		if q, ok := ratio(x, y, a.metric); ok {
			os = append(os, outcome{a, number(x.of(a.metric).median), number(y.of(a.metric).median), q})
		}
	}
	return os
}

// number is a figure with three digits that count.
func number(v float64) string {
	switch {
	case v >= 9999.5:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (o outcome) verdict() string {
	if o.met(o.ratio.median) {
		return "yes"
	}
	return "no"
}

// aimsTo prints the aims for someone at a terminal.
func (r *result) aimsTo(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tours\tagainst\t\tratio\t(range)\taim\tmet")
	for _, o := range r.outcomes() {
		fmt.Fprintf(t, "%s: %s\t%s\t%s\t%s\t%.2f\t(%.2f-%.2f)\t%s\t%s\n", o.what, o.aim.ours, o.ours, o.aim.theirs, o.theirs,
			o.ratio.median, o.ratio.least, o.ratio.most, o.bound(), o.verdict())
	}
	return t.Flush()
}
