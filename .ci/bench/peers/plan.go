package main

import (
	"fmt"
	"strings"
	"time"
)

// A workload is what a client does for a while.
type workload struct {
	Mode     string // of load.c
	Bytes    int
	Depth    int // of each session
	Sessions int
	LUNs     int
}

func (w workload) String() string {
	s := fmt.Sprintf("%s %s depth %d", w.Mode, size(w.Bytes), w.Depth)
	if w.Sessions > 1 {
		s += fmt.Sprintf(", %d sessions", w.Sessions)
	}
	if w.LUNs > 1 {
		s += fmt.Sprintf(", %d LUNs", w.LUNs)
	}
	return s
}

func (w workload) writes() bool { return strings.HasSuffix(w.Mode, "write") }

// size is a number of bytes in words.
func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// A plan is what to measure.
type plan struct {
	Each   time.Duration // of one run
	Rounds int           // at most
	Limit  time.Duration // of all; no round is begun that would end later
	Depths []int         // of 4 KiB at random places
	Sizes  []int         // in sequence, as many bytes
	Many   []int         // sessions, 8 requests each
	LUNs   int           // that one session goes over
}

var (
	full = plan{
		Each: 700 * time.Millisecond, Rounds: 5, Limit: 14 * time.Minute,
		Depths: []int{1, 8, 32, 128}, Sizes: []int{64 << 10, 128 << 10, 1 << 20}, Many: []int{4, 16}, LUNs: manyLUNs,
	}
	short = plan{
		Each: 400 * time.Millisecond, Rounds: 3, Limit: 110 * time.Second,
		Depths: []int{1, 32}, Sizes: []int{128 << 10, 1 << 20},
	}
)

// depthOf is the depth of sequential requests: about as many bytes under way for all sizes.
func depthOf(bytes int) int { return max(8, min(16, (8<<20)/bytes)) }

// workloads are those for a target of its own.
func (p *plan) workloads() (ws []workload) {
	for _, mode := range []string{"read", "write"} {
		for _, d := range p.Depths {
			ws = append(ws, workload{"rand" + mode, 4096, d, 1, 1})
		}
	}
	for _, mode := range []string{"read", "write"} {
		for _, n := range p.Sizes {
			ws = append(ws, workload{mode, n, depthOf(n), 1, 1})
		}
	}
	for _, n := range p.Many {
		ws = append(ws, workload{"randread", 4096, 8, n, 1}, workload{"randwrite", 4096, 8, n, 1})
	}
	if p.LUNs > 1 {
		ws = append(ws, workload{"randread", 4096, 32, 1, p.LUNs}, workload{"randwrite", 4096, 32, 1, p.LUNs})
	}
	return ws
}

// message is how long the messages of a round trip are, there and back.
const message = 64

// limits are what bare sockets do.
func (p *plan) limits() []workload {
	return []workload{
		{streamTCP, 1 << 20, 1, 1, 1}, {streamUDP, 1 << 20, 1, 1, 1}, {roundTripTCP, message, 1, 1, 1}, {roundTripUDP, message, 1, 1, 1},
	}
}

// A pair is one workload for one subject.
type pair struct {
	subject  *subject
	workload workload
}

// runs are the pairs of a round: all subjects of a workload after each other.
func (p *plan) runs(subjects []*subject) (runs []pair) {
	for _, w := range p.limits() {
		runs = append(runs, pair{bare, w})
	}
	for _, w := range p.workloads() {
		for _, s := range subjects {
			if s.fits(w) {
				runs = append(runs, pair{s, w})
			}
		}
	}
	return runs
}
