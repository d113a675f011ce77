package main

import (
	"encoding/binary"
	"fmt"
)

// lmdd's pattern: each 4-byte word, little-endian as on the machines that lmdd ran on, is its own byte offset
// (modulo 2^32).

func fillWords(p []byte, off int64) {
	for i := 0; i+4 <= len(p); i += 4 {
		binary.LittleEndian.PutUint32(p[i:], uint32(off+int64(i)))
	}
}

// checkWords reports each wrong word as lmdd does. It returns errTooManyWrong at the limit.
func (c *copier) checkWords(p []byte, off int64) error {
	for i := 0; i+4 <= len(p); i += 4 {
		want, got := uint32(off+int64(i)), binary.LittleEndian.Uint32(p[i:])
		if want == got {
			continue
		}
		c.wrong++
		if c.wrong <= maxWordReports {
			fmt.Fprintf(c.report, "off=%d want=%x got=%x\n", off+int64(i), want, got)
		}
		if c.o.mismatch > 0 && c.wrong >= c.o.mismatch {
			return errTooManyWrong
		}
	}
	return nil
}
