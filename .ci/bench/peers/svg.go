package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"strings"
)

// The picture: a row an aim, its ratio as a bar with the range of the rounds, and the aim as a line. Pixels.
const (
	rowHeight  = 22
	labelWidth = 620
	plotWidth  = 360
	topMargin  = 40
)

// svg draws the ratios, on a logarithmic axis: 2 is as far from 1 as 0.5 is.
func (r *result) svg(f *os.File) error {
	os := r.outcomes()
	low, high := 0.5, 2.0
	for _, o := range os {
		low, high = min(low, o.ratio.least), max(high, o.ratio.most)
	}
	x := func(v float64) float64 {
		return labelWidth + plotWidth*(math.Log(v)-math.Log(low))/(math.Log(high)-math.Log(low))
	}
	var b strings.Builder
	height := topMargin + rowHeight*(len(os)+1)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", labelWidth+plotWidth+80, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="10" y="20" font-size="14">ours divided by theirs, %s (green: aim met; line: aim)</text>`+"\n", r.Date.Format("2006-01-02"))
	for v := math.Exp2(math.Ceil(math.Log2(low))); v <= high; v *= 2 {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%g</text>`+"\n",
			x(v), x(v), topMargin-6, height-rowHeight, x(v), height-6, v)
	}
	for i, o := range os {
		y := topMargin + i*rowHeight
		color := "#2a9d4a"
		if !o.met(o.ratio.median) {
			color = "#c8553d"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, y+13, html.EscapeString(o.what+": "+o.aim.ours+" / "+o.aim.theirs))
		from, to := min(x(1), x(o.ratio.median)), max(x(1), x(o.ratio.median))
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="12" fill="%s"/>`, from, y+3, to-from, color)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black"/>`, x(o.ratio.least), x(o.ratio.most), y+9, y+9)
		goal := x(o.least + o.most)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#1d4ed8" stroke-width="2"/>`, goal, goal, y, y+18)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%.2f</text>`+"\n", labelWidth+plotWidth+20, y+13, o.ratio.median)
	}
	b.WriteString("</svg>\n")
	_, err := f.WriteString(b.String())
	return err
}
