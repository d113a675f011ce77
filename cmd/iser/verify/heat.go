package verify

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// The size of a heat map, whatever the disk and the time: columns of the disk, rows of time. A row is firstRow long at
// first; each time the rows are used up, two become one.
const (
	heatColumns = 96
	heatRows    = 48
	firstRow    = 100 * time.Millisecond
)

// A Heat is where on the disk and when sectors were read, and which were wrong. It covers the disk from the first
// range's start to the last one's end.
type Heat struct {
	span  Range
	row   time.Duration
	cells [heatRows][heatColumns]heatCell
}

type heatCell struct {
	read  bool
	wrong int64
	kind  stamp.Kind // of the first that was wrong
}

func newHeat(rs []Range) *Heat {
	h := &Heat{row: firstRow}
	if len(rs) > 0 {
		h.span = Range{rs[0].Start, rs[len(rs)-1].End}
	}
	return h
}

// column is that of a byte. The size of a disk is below 2^63, so it is divided before it is multiplied.
func (h *Heat) column(at int64) int {
	width := max((h.span.Len()+heatColumns-1)/heatColumns, 1)
	return int(min(max((at-h.span.Start)/width, 0), heatColumns-1))
}

func (h *Heat) at(since time.Duration) int {
	for since/h.row >= heatRows {
		for i := range heatRows / 2 {
			for c := range h.cells[i] {
				h.cells[i][c] = h.cells[2*i][c].and(h.cells[2*i+1][c])
			}
		}
		clear(h.cells[heatRows/2:])
		h.row *= 2
	}
	return int(since / h.row)
}

func (a heatCell) and(b heatCell) heatCell {
	if a.wrong == 0 {
		a.kind = b.kind
	}
	return heatCell{a.read || b.read, a.wrong + b.wrong, a.kind}
}

func (h *Heat) read(q Range, since time.Duration) {
	row := h.at(since)
	for c := h.column(q.Start); c <= h.column(q.End-1); c++ {
		h.cells[row][c].read = true
	}
}

func (h *Heat) bad(m *stamp.Mismatch, since time.Duration) {
	c := &h.cells[h.at(since)][h.column(int64(m.Want.Sector)*stamp.SectorSize)]
	*c = c.and(heatCell{wrong: 1, kind: m.Kind})
}

// The colours of the map: what was read and right, and each kind of mismatch.
const rightColour = "#dfe7ec"

func colour(k stamp.Kind) string {
	switch k {
	case stamp.Unwritten:
		return "#d62728"
	case stamp.Zeros:
		return "#1f77b4"
	case stamp.Stale:
		return "#ff7f0e"
	case stamp.Newer:
		return "#bcbd22"
	case stamp.Misplaced:
		return "#9467bd"
	case stamp.OtherWriter:
		return "#e377c2"
	case stamp.Torn:
		return "#8c564b"
	case stamp.BitFlip:
		return "#2ca02c"
	}
	return "#333333"
}

// The drawing's measures in pixels.
const (
	cellSize   = 9
	heatMargin = 60
)

// SVG draws the map: the disk from left to right, time downwards; a wrong cell has the colour of the first kind found
// there and tells the rest when pointed at.
func (h *Heat) SVG(w io.Writer) error {
	rows := 1
	for i := range h.cells {
		for _, c := range h.cells[i] {
			if c != (heatCell{}) {
				rows = i + 1
			}
		}
	}
	var b strings.Builder
	width, height := heatColumns*cellSize+2*heatMargin, rows*cellSize+2*heatMargin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="20">mismatches over bytes %d to %d (left to right) and time, %v a row (downwards)</text>`+"\n",
		heatMargin, h.span.Start, h.span.End, h.row)
	kinds := make(map[stamp.Kind]int64)
	for i := range rows {
		for c, cell := range h.cells[i] {
			h.cell(&b, i, c, cell)
			if cell.wrong > 0 {
				kinds[cell.kind] += cell.wrong
			}
		}
	}
	fmt.Fprintf(&b, `<text x="4" y="%d">0s</text><text x="4" y="%d">%v</text>`+"\n", heatMargin+cellSize, heatMargin+rows*cellSize, time.Duration(rows)*h.row)
	legend(&b, kinds, heatMargin+rows*cellSize+20)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (h *Heat) cell(b *strings.Builder, row, column int, c heatCell) {
	if c == (heatCell{}) {
		return
	}
	fill, title := rightColour, ""
	if c.wrong > 0 {
		fill = colour(c.kind)
		title = fmt.Sprintf("<title>%d wrong sectors, %s first</title>", c.wrong, c.kind)
	}
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s">%s</rect>`+"\n",
		heatMargin+column*cellSize, heatMargin+row*cellSize, cellSize-1, cellSize-1, fill, title)
}

// legend names the colours that are there.
func legend(b *strings.Builder, kinds map[stamp.Kind]int64, y int) {
	x := heatMargin
	for _, k := range []stamp.Kind{
		"", stamp.Unwritten, stamp.Zeros, stamp.Stale, stamp.Newer, stamp.Misplaced,
		stamp.OtherWriter, stamp.Torn, stamp.BitFlip, stamp.Foreign,
	} {
		fill, name := colour(k), string(k)
		if k == "" {
			fill, name = rightColour, "read, right"
		} else if kinds[k] == 0 {
			continue
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			x, y, cellSize, cellSize, fill, x+cellSize+4, y+cellSize, name)
		x += 88
	}
}
