package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// A Line is a series with its name in a drawing.
type Line struct {
	Name   string
	Points []Point
}

// The drawing's measures in pixels.
const (
	plotWidth   = 760
	plotHeight  = 220
	plotLeft    = 80
	plotTop     = 50
	plotGap     = 60 // between the plots
	plotRight   = 20
	legendLine  = 18
	ticks       = 5
	colourCount = 4
)

// colours are those of lines, one after the other; people who see red and green alike can tell them apart.
func colour(i int) string {
	return [colourCount]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}[i%colourCount]
}

// A curve is what is drawn of a line.
type curve struct {
	name   string
	colour string
	dashed bool
	points []Point
	y      func(*Point) float64
}

// SVG draws throughput and, below it, the median and the 99th percentile of latency over time.
func SVG(w io.Writer, title string, lines []Line) error {
	var rates, latencies []curve
	for i, l := range lines {
		rates = append(rates, curve{l.Name, colour(i), false, l.Points, func(p *Point) float64 { return p.BytesPerS / (1 << 20) }})
		latencies = append(latencies,
			curve{l.Name + " p50", colour(i), false, l.Points, func(p *Point) float64 { return p.P50 }},
			curve{l.Name + " p99", colour(i), true, l.Points, func(p *Point) float64 { return p.P99 }})
	}
	var b strings.Builder
	second := plotTop + plotHeight + plotGap + legendLine*len(rates)
	width, height := plotLeft+plotWidth+plotRight, second+plotHeight+plotGap+legendLine*len(latencies)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="13">%s</text>`+"\n", plotLeft, escape(title))
	plot(&b, plotTop, "throughput, MiB/s", rates)
	plot(&b, second, "latency, us", latencies)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder has no errors
	return b.String()
}

// plot draws curves in one pair of axes whose top is at y.
func plot(b *strings.Builder, top int, what string, curves []curve) {
	var mostX, mostY float64
	for _, c := range curves {
		for i := range c.points {
			mostX, mostY = max(mostX, c.points[i].At), max(mostY, c.y(&c.points[i]))
		}
	}
	stepX, stepY := step(mostX), step(mostY)
	mostX, mostY = max(mostX, stepX), stepY*max(math.Ceil(mostY/stepY), 1)
	x := func(v float64) float64 { return plotLeft + v/mostX*plotWidth }
	y := func(v float64) float64 { return float64(top+plotHeight) - v/mostY*plotHeight }
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", plotLeft, top-8, what)
	for v := 0.0; v <= mostY*(1+1e-9); v += stepY {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n", plotLeft, y(v), plotWidth, plotLeft-6, y(v)+4, v)
	}
	for v := 0.0; v <= mostX*(1+1e-9); v += stepX {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.4gs</text>`+"\n", x(v), top+plotHeight+16, v)
	}
	for i, c := range curves {
		dash := ""
		if c.dashed {
			dash = ` stroke-dasharray="4 3"`
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5"%s points="`, c.colour, dash)
		for k := range c.points {
			fmt.Fprintf(b, "%.1f,%.1f ", x(c.points[k].At), y(c.y(&c.points[k])))
		}
		b.WriteString("\"/>\n")
		at := top + plotHeight + 34 + legendLine*i
		fmt.Fprintf(b, `<path d="M%d %dh24" stroke="%s" stroke-width="2"%s/><text x="%d" y="%d">%s</text>`+"\n", plotLeft, at-4, c.colour, dash, plotLeft+32, at, escape(c.name))
	}
}

// step is a round distance of ticks, of which about so many reach most.
func step(most float64) float64 {
	if most <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most/ticks)))
	for _, f := range []float64{1, 2, 5} {
		if most/(unit*f) <= ticks {
			return unit * f
		}
	}
	return unit * 10
}
