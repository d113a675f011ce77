package lab

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// Measures of the diagram, in pixels. Rows are events, one below the other: time is written, not drawn to scale, since
// a retransmission takes a thousand times what a message does.
const (
	svgRow     = 18
	svgTop     = 60
	svgTimes   = 110 // width of the times at the left
	svgColumn  = 420 // between lifelines
	svgRight   = 460 // for what is written at the last one
	svgMaxRows = 600
)

// SVG draws a time line as a sequence diagram: a lifeline for each end, an arrow for each packet or run of packets (red
// and broken off if it was lost), a mark for each step, and in red what checkers see.
func (r *Result) SVG(out io.Writer) error {
	lines := r.lines()
	more := max(0, len(lines)-svgMaxRows)
	lines = lines[:len(lines)-more]
	d := diagram{out: bufio.NewWriter(out), ends: ends(lines)}
	width := svgTimes + svgColumn*(len(d.ends)-1) + svgRight
	height := svgTop + svgRow*(len(lines)+2)
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="11">`+"\n", width, height)
	d.printf(`<rect width="100%%" height="100%%" fill="white"/>` + "\n")
	d.text(8, 18, "#000", r.title())
	for i, e := range d.ends {
		x := d.x(e)
		d.printf(`<text x="%d" y="%d" font-weight="bold" text-anchor="middle">%s</text>`+"\n", x, svgTop-20, html.EscapeString(d.ends[i]))
		d.printf(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#999"/>`+"\n", x, svgTop-14, x, height-svgRow)
	}
	for i := range lines {
		d.event(&lines[i], svgTop+i*svgRow)
	}
	if more+r.Unrecorded > 0 {
		d.text(8, height-svgRow/2, "#000", fmt.Sprintf("%d more events", more+r.Unrecorded))
	}
	d.printf("</svg>\n")
	return d.out.Flush()
}

func (r *Result) title() string {
	t := fmt.Sprintf("%s, seed %d", r.Scenario, r.Seed)
	if r.Control != "" {
		t += ", control " + r.Control
	}
	return t
}

// ends are the lifelines: the initiators, then the target.
func ends(lines []Event) []string {
	all := []string{"target"}
	for i := range lines {
		if e := lines[i].Where; strings.HasPrefix(e, "host") && !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	slices.Sort(all) // hosts come first by name
	return all
}

// A diagram is an SVG being written. A write error shows when it is flushed.
type diagram struct {
	out  *bufio.Writer
	ends []string
}

func (d *diagram) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d *diagram) text(x, y int, color, s string) {
	d.printf(`<text x="%d" y="%d" fill="%s">%s</text>`+"\n", x, y, color, html.EscapeString(s))
}

// x is where an end's lifeline is, 0 if it has none.
func (d *diagram) x(end string) int {
	i := slices.Index(d.ends, end)
	if i < 0 {
		return 0
	}
	return svgTimes + 20 + i*svgColumn
}

func (d *diagram) event(e *Event, y int) {
	d.text(8, y+4, "#666", fmt.Sprintf("%.3f us", float64(e.At)/float64(time.Microsecond)))
	from, to := d.x(e.Where), d.x(e.To)
	switch {
	case e.What == whatWrong:
		d.text(svgTimes+26, y+4, "#c00", "checker: "+e.Note)
	case from == 0:
		d.text(svgTimes+26, y+4, "#06c", e.Where+": "+e.details())
	case e.What == whatSent && to != 0:
		d.arrow(e, from, to, y)
	default:
		d.printf(`<circle cx="%d" cy="%d" r="3"/>`+"\n", from, y)
		d.text(from+8, y+4, "#000", e.What+" "+e.details())
	}
}

// arrow draws a packet, as far as it comes.
func (d *diagram) arrow(e *Event, from, to, y int) {
	color, end := "#36a", to
	if gone(e.Note) {
		color, end = "#c00", (from+to)/2
	}
	d.printf(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s"/>`+"\n", from, y, end, y+svgRow/2, color)
	head := "&#9654;"
	if to < from {
		head = "&#9664;"
	}
	if end != to {
		head = "&#10006;"
	}
	d.printf(`<text x="%d" y="%d" fill="%s" text-anchor="middle">%s</text>`+"\n", end, y+svgRow/2+4, color, head)
	label := *e
	label.To = ""
	d.text(min(from, to)+60, y-1, color, label.details())
}

// gone reports whether a packet's fate is not to arrive whole.
func gone(note string) bool {
	return slices.Contains([]string{"lost", "dropped", "cut", "corrupted", "too long", "unreachable", "overflowed"}, note)
}
