package stamp

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// maxMixed bounds the generations that Mixture tells apart.
const maxMixed = 32

// Mixture says of which generations of its own sector and seed the bytes of s are, of SectorSize bytes; ok is false if
// some are of none, or if it is too hard to tell. A disk may leave such a mixture where two writes meet in one sector:
// SBC-3 does not say that a block is written at one moment. They meet at any byte. Generations that may be there are
// a help, where so few bytes are left of one that they do not tell; Zeroed must be among them to be found.
func Mixture(s []byte, seed, sector uint64, maybe []uint64) (gens []uint64, ok bool) {
	var m mixture
	for _, g := range maybe {
		m.add(seed, sector, g)
	}
	x := uint64(0)
	for i := offBody; i < SectorSize; i += 8 {
		x += step
		m.add(seed, sector, unmix(unmix(unmix(stateOf(s, i)-x)^seed)^sector)) // nonsense where two meet
	}
	if !m.explain(s) {
		// The header may be all that is left of a write. It is asked last: two may meet in its generation too.
		m.add(seed, sector, binary.LittleEndian.Uint64(s[offGen:]))
		if m.used = 0; !m.explain(s) {
			return nil, false
		}
	}
	for n, g := range m.gens {
		if m.used>>n&1 != 0 {
			gens = append(gens, g)
		}
	}
	return gens, true
}

// A mixture is a sector in every generation that may be in it.
type mixture struct {
	gens    []uint64
	sectors [maxMixed][SectorSize]byte
	used    uint32 // a bit for each of gens
}

func (m *mixture) add(seed, sector, gen uint64) {
	if n := len(m.gens); (gen < plausible || gen == Zeroed) && n < maxMixed && !slices.Contains(m.gens, gen) {
		m.gens = append(m.gens, gen)
		fillOne(m.sectors[n][:], ID{Seed: seed, Sector: sector, Generation: gen})
	}
}

// whole are the generations whose word at a byte is that of s, as bits; all where there is no word.
func (m *mixture) whole(s []byte, i int) uint32 {
	if i < 0 || i >= SectorSize {
		return ^uint32(0)
	}
	var set uint32
	for n := range m.gens {
		if bytes.Equal(s[i:i+8], m.sectors[n][i:i+8]) {
			set |= 1 << n
		}
	}
	return set
}

// explain is whether every word of s is that of one generation, or begins as that of the word before and ends as that
// of the word after, which is another. Where several would do, that one is taken which is used anyhow.
func (m *mixture) explain(s []byte) bool {
	var several []uint32
	for i := 0; i < SectorSize; i += 8 {
		switch set := m.whole(s, i); bits.OnesCount32(set) {
		case 0:
			if !m.meet(s, i) {
				return false
			}
		case 1:
			m.used |= set
		default:
			several = append(several, set)
		}
	}
	for _, set := range several {
		if set&m.used == 0 {
			m.used |= set & -set
		}
	}
	return true
}

// meet is whether two generations meet in the word at byte i, and marks them as used.
func (m *mixture) meet(s []byte, i int) bool {
	before, after := m.whole(s, i-8), m.whole(s, i+8)
	for a := range m.gens {
		prefix := commonPrefix(s[i:i+8], m.sectors[a][i:i+8])
		for b := range m.gens {
			if a != b && before>>a&1 != 0 && after>>b&1 != 0 && prefix+commonSuffix(s[i:i+8], m.sectors[b][i:i+8]) >= 8 {
				m.used |= 1<<a | 1<<b
				return true
			}
		}
	}
	return false
}
