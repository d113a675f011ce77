package main

import (
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"
)

// A progress is a live line on stderr for long work: how far, how fast, how long still. It is quiet when
// stderr is not a terminal.
type progress struct {
	out   *os.File
	live  bool
	what  string
	total int64
	until time.Time // when it ends at the latest; zero: when it is done
	start time.Time
	last  time.Time
}

const progressInterval = 200 * time.Millisecond

func (a *app) progress(what string, total int64) *progress {
	st, err := a.errOut.Stat()
	tty := err == nil && st.Mode()&os.ModeCharDevice != 0
	now := time.Now()
	return &progress{out: a.errOut, live: tty && !a.quiet, what: what, total: total, start: now, last: now}
}

// update redraws the line at most every progressInterval. done counts bytes.
func (p *progress) update(done int64) {
	now := time.Now()
	if !p.live || now.Sub(p.last) < progressInterval {
		return
	}
	p.last = now
	took := now.Sub(p.start).Seconds()
	rate := float64(done) / took
	line := fmt.Sprintf("%s  %s  %s/s", p.what, humanize.IBytes(uint64(done)), humanize.IBytes(uint64(rate)))
	switch {
	case p.total > 0 && rate > 0:
		left := time.Duration(float64(p.total-done) / rate * float64(time.Second))
		line += fmt.Sprintf("  %d%%  eta %v", done*100/p.total, left.Round(time.Second))
	case !p.until.IsZero():
		line += fmt.Sprintf("  eta %v", max(p.until.Sub(now), 0).Round(time.Second))
	}
	p.show(line)
}

// count redraws the line for work of so many steps.
func (p *progress) count(done, all uint64) {
	now := time.Now()
	if !p.live || now.Sub(p.last) < progressInterval {
		return
	}
	p.last = now
	line := fmt.Sprintf("%s  %d of %d", p.what, done, all)
	if done > 0 {
		left := now.Sub(p.start) * time.Duration(all-done) / time.Duration(done)
		line += fmt.Sprintf("  %d%%  eta %v", done*100/all, left.Round(time.Second))
	}
	p.show(line)
}

// show draws a line over the one there, if this is a terminal.
func (p *progress) show(line string) {
	if p.live {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	}
}

// finish clears the line.
func (p *progress) finish() {
	if p.live {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
