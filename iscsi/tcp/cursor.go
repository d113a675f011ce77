package tcp

// A cursor is a position in a list of buffers.
type cursor struct {
	bufs [][]byte
	off  int // in bufs[0]
}

// seek is the cursor n bytes into bufs.
func seek(bufs [][]byte, n uint32) cursor {
	c := cursor{bufs: bufs}
	c.advance(int(n))
	return c
}

// peek is what follows in one piece: at most max bytes, empty only at the end or if max is 0.
func (c *cursor) peek(max int) []byte {
	for len(c.bufs) > 0 && c.off == len(c.bufs[0]) {
		c.bufs, c.off = c.bufs[1:], 0
	}
	if len(c.bufs) == 0 {
		return nil
	}
	p := c.bufs[0][c.off:]
	return p[:min(len(p), max)]
}

// advance moves n bytes on; moving past the end stops there.
func (c *cursor) advance(n int) {
	for len(c.bufs) > 0 && n >= len(c.bufs[0])-c.off {
		n -= len(c.bufs[0]) - c.off
		c.bufs, c.off = c.bufs[1:], 0
	}
	if len(c.bufs) > 0 {
		c.off += n
	}
}

// next is peek and advance.
func (c *cursor) next(max int) []byte {
	p := c.peek(max)
	c.advance(len(p))
	return p
}

// total is the size of bufs in bytes.
func total(bufs [][]byte) (n uint64) {
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return n
}
