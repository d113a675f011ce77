package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Text writes a time line, one event a line: when, where, what, and its numbers. Runs of packets that are alike are one
// line, and arrivals of packets that were not lost none: they are in the JSON form.
func (r *Result) Text(out io.Writer) error {
	for _, l := range r.lines() {
		if _, err := fmt.Fprintf(out, "%12.3f us  %-8s  %-11s %s\n", float64(l.At)/float64(time.Microsecond), l.Where, l.What, l.details()); err != nil {
			return err
		}
	}
	if r.Unrecorded > 0 {
		_, err := fmt.Fprintf(out, "%d more events were not recorded\n", r.Unrecorded)
		return err
	}
	return nil
}

// details are an event's numbers in words.
func (e *Event) details() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if e.Of != "" {
		add("%s", e.Of)
	}
	if e.To != "" {
		add("to %s PSN %d", e.To, e.PSN)
	}
	if e.Tag != 0 {
		add("tag %08x", e.Tag)
	}
	if e.Key != 0 {
		add("key %08x", e.Key)
	}
	if e.Addr != 0 {
		add("address %016x", e.Addr)
	}
	if e.Length != 0 {
		add("%d bytes", e.Length)
	}
	if e.Word != 0 {
		add("first word %08x", e.Word)
	}
	if e.Note != "" {
		add("%s", e.Note)
	}
	return strings.Join(parts, "  ")
}

// lines are the events worth a line.
func (r *Result) lines() []Event {
	var all []Event
	run := 0 // packets in the last line
	for _, e := range r.Events {
		if e.What == whatArrives {
			continue
		}
		if n := len(all); n > 0 && alike(&all[n-1], &e, run) {
			run++
			all[n-1].Length += e.Length
			all[n-1].Note = fmt.Sprintf("%d packets", run)
			continue
		}
		run = 1
		all = append(all, e)
	}
	return all
}

// alike reports whether e is one more packet of the run of so many packets that last stands for.
func alike(last, e *Event, run int) bool {
	return e.What == whatSent && last.What == whatSent && e.Where == last.Where && e.To == last.To && e.Of == last.Of && e.Note == "" &&
		(last.Note == "" || run > 1) && e.Key == 0 && last.Key == 0 && e.PSN == last.PSN+uint32(run)
}
