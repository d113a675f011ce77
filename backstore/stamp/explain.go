package stamp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
)

// A Kind names what is wrong with a sector.
type Kind string

// The kinds of mismatch, by what must have happened.
const (
	// Unwritten: the buffer still holds its poison: the read reported data that never landed.
	Unwritten Kind = "unwritten"
	// Zeros: all zero: the write was lost, or the range was unmapped.
	Zeros Kind = "zeros"
	// Stale: the right sector of an earlier generation, or of any where zeros were to be: a lost write or zeroing.
	Stale Kind = "stale"
	// Newer: the right sector of a later generation than expected.
	Newer Kind = "newer"
	// Misplaced: a whole sector that belongs elsewhere: misdirected write or read.
	Misplaced Kind = "misplaced"
	// OtherWriter: a whole sector of another seed: somebody else wrote here.
	OtherWriter Kind = "other-writer"
	// Torn: one thing up to byte N, another from there, and the right bytes are one of them or were to be.
	Torn Kind = "torn"
	// BitFlip: few bits differ.
	BitFlip Kind = "bit-flip"
	// Foreign: bytes that no stamp explains.
	Foreign Kind = "foreign"
)

// A Mismatch is one wrong sector, explained.
type Mismatch struct {
	Kind Kind `json:"kind"`
	Want ID   `json:"want"` // its generation is Zeroed where zeros were to be
	// Found is what the sector says of itself, if HasFound.
	Found    ID   `json:"found"`
	HasFound bool `json:"has_found"`
	// First is the first byte of the sector that differs, Differ how many do.
	First  int `json:"first_byte"`
	Differ int `json:"bytes_differing"`
	// TornAt is for Torn the byte at which one thing ends and another begins; Head and Rest say what they
	// are, empty for the right bytes, and HeadID and RestID which stamp, if one. Found is then that of the wrong
	// part, the head's if both are, if HasFound.
	TornAt int  `json:"torn_at_byte,omitempty"`
	Head   Kind `json:"head,omitempty"`
	Rest   Kind `json:"rest,omitempty"`
	HeadID ID   `json:"head_id,omitzero"`
	RestID ID   `json:"rest_id,omitzero"`
	// Flipped are for BitFlip the bits that differ, byte * 8 + bit, where bit 0 is the lowest of its byte.
	Flipped []int `json:"flipped_bits,omitempty"`
	// Expected and Got are copies of the sector.
	Expected []byte `json:"-"`
	Got      []byte `json:"-"`
}

// OffsetBytes is where on the disk the first wrong byte is.
func (m *Mismatch) OffsetBytes() int64 { return int64(m.Want.Sector)*SectorSize + int64(m.First) }

func (m *Mismatch) String() string {
	return fmt.Sprintf("sector %d (byte %d): expected %s, found %s", m.Want.Sector, m.OffsetBytes(), m.want(), m.what())
}

func (m *Mismatch) want() string {
	if m.Want.Generation == Zeroed {
		return "zeros"
	}
	return fmt.Sprintf("seed=%d generation=%d", m.Want.Seed, m.Want.Generation)
}

func (m *Mismatch) what() string {
	switch m.Kind {
	case Unwritten:
		return "the poison put there before the read: the data had not landed"
	case Zeros:
		return "zeros: the write was lost or the range unmapped"
	case Stale:
		lost := "lost write"
		if m.Want.Generation == Zeroed {
			lost = "lost zeroing"
		}
		return fmt.Sprintf("generation %d: an older write of this sector (%s)", m.Found.Generation, lost)
	case Newer:
		return fmt.Sprintf("generation %d: a newer write of this sector", m.Found.Generation)
	case Misplaced:
		return fmt.Sprintf("sector %d of generation %d: another sector's data (misdirected)", m.Found.Sector, m.Found.Generation)
	case OtherWriter:
		return fmt.Sprintf("sector %d of seed %d: another writer's data", m.Found.Sector, m.Found.Seed)
	case Torn:
		return fmt.Sprintf("%s up to %d, then %s (torn)", part(m.Head, m.HeadID), m.TornAt, part(m.Rest, m.RestID))
	case BitFlip:
		return fmt.Sprintf("%d wrong byte(s) from byte %d on: %s", m.Differ, m.First, m.flips())
	default:
		return fmt.Sprintf("foreign bytes from byte %d on: %x…", m.First, m.Got[m.First:min(m.First+16, SectorSize)])
	}
}

// part names a part of a torn sector.
func part(k Kind, id ID) string {
	switch k {
	case "":
		return "the right bytes"
	case Stale, Newer:
		return fmt.Sprintf("generation %d (%s)", id.Generation, k)
	case Misplaced:
		return fmt.Sprintf("sector %d of generation %d (misplaced)", id.Sector, id.Generation)
	case OtherWriter:
		return fmt.Sprintf("sector %d of seed %d (other-writer)", id.Sector, id.Seed)
	}
	return string(k)
}

// flips names the bits that differ and shows the first wrong byte.
func (m *Mismatch) flips() string {
	var b strings.Builder
	for _, bit := range m.Flipped {
		fmt.Fprintf(&b, "bit %d of byte %d, ", bit%8, bit/8)
	}
	return fmt.Sprintf("%swant %02x, got %02x", b.String(), m.Expected[m.First], m.Got[m.First])
}

// maxFlippedBits is how many bits may differ for a sector to count as damaged in transit or in memory
// rather than as foreign.
const maxFlippedBits = 8

func explain(want, got []byte, id ID) *Mismatch {
	m := &Mismatch{Want: id, Expected: bytes.Clone(want), Got: bytes.Clone(got), First: -1}
	flipped := 0
	for i := range want {
		if want[i] != got[i] {
			if m.First < 0 {
				m.First = i
			}
			m.Differ++
			flipped += bits.OnesCount8(want[i] ^ got[i])
		}
	}
	var c Checker
	found, ok, valid := c.Parse(got)
	m.Found, m.HasFound = found, ok
	switch {
	case valid:
		m.Kind = kindOfStamp(id, found)
	case uniform(got) != "":
		m.Kind = uniform(got)
	case flipped <= maxFlippedBits:
		m.Kind, m.Flipped = BitFlip, differing(want, got)
	default:
		m.explainParts()
	}
	return m
}

func kindOfStamp(want, found ID) Kind {
	switch {
	case found.Seed != want.Seed:
		return OtherWriter
	case found.Sector != want.Sector:
		return Misplaced
	case found.Generation < want.Generation:
		return Stale
	default:
		return Newer
	}
}

// differing lists the bits that differ.
func differing(want, got []byte) []int {
	var all []int
	for i := range want {
		for d := want[i] ^ got[i]; d != 0; d &= d - 1 {
			all = append(all, i*8+bits.TrailingZeros8(d))
		}
	}
	return all
}

// minPart is the least that counts as a part of a torn sector, in bytes: nothing tears finer than a word,
// and less would be a coincidence too often. staleSearched is how many generations back a part is looked for.
const (
	minPart       = 8
	staleSearched = 16
)

// earlier is how many generations before id are looked for: none before zeros, which do not tell when they were made.
func (id ID) earlier() uint64 {
	if id.Generation == Zeroed {
		return 0
	}
	return min(staleSearched, id.Generation)
}

// A source is what the bytes of a part may be.
type source struct {
	kind  Kind // empty: the right bytes
	id    ID
	known bool // id is
}

// explainParts explains a sector that carries no whole stamp: it is one thing up to some byte and another
// from there, or its head is right, or nothing is known. The right bytes are preferred on either side, then
// what is the longest.
func (m *Mismatch) explainParts() {
	var head, tail source
	prefix, suffix := 0, 0
	m.eachSource(func(s source, b []byte) {
		if n := commonPrefix(b, m.Got); n > prefix {
			head, prefix = s, n
		}
		if n := commonSuffix(b, m.Got); n > suffix {
			tail, suffix = s, n
		}
	})
	switch {
	case prefix >= minPart && suffix >= minPart && prefix+suffix >= len(m.Got) && head != tail:
		m.Kind, m.TornAt, m.Head, m.Rest = Torn, prefix, head.kind, tail.kind
		m.HeadID, m.RestID = head.id, tail.id
		if n := prefix &^ (minPart - 1); n+suffix >= len(m.Got) {
			m.TornAt = n // bytes after it are alike in both by chance
		}
		m.Found, m.HasFound = ID{}, false
		for _, s := range []source{tail, head} {
			if s.kind != "" && s.known {
				m.Found, m.HasFound = s.id, true
			}
		}
	case m.First >= offBody:
		m.Kind, m.TornAt, m.Rest = Torn, m.First, Foreign
	default:
		m.Kind = Foreign
	}
}

// eachSource calls do with whatever the parts of a torn sector may be, what is likelier first. b is good
// until do returns.
func (m *Mismatch) eachSource(do func(s source, b []byte)) {
	do(source{id: m.Want, known: true}, m.Expected)
	var b [SectorSize]byte
	do(source{kind: Zeros}, b[:])
	Poison(b[:])
	do(source{kind: Unwritten}, b[:])
	if m.HasFound && m.Found != m.Want {
		fillOne(b[:], m.Found)
		do(source{kindOfStamp(m.Want, m.Found), m.Found, true}, b[:])
	}
	for back := uint64(1); back <= m.Want.earlier(); back++ {
		id := m.Want
		id.Generation -= back
		fillOne(b[:], id)
		do(source{Stale, id, true}, b[:])
	}
	if id, ok := origin(m.Got, m.Want); ok {
		fillOne(b[:], id)
		do(source{kindOfStamp(m.Want, id), id, true}, b[:])
	}
}

// plausible bounds the sectors and generations that origin believes in: a disk of 2^49 bytes. Of all 64-bit numbers
// few are below it, so that hardly any junk passes.
const plausible = 1 << 40

// origin finds which sector and generation of want's seed the last words of a torn sector are from, if its header does
// not say. All that makes a word of the body can be undone; what is left is the sector mixed with the generation, so that
// either tells the other: it is another generation of the sector, or another sector of a generation near the one
// wanted. The word before must agree.
func origin(got []byte, want ID) (ID, bool) {
	last, before := stateOf(got, SectorSize-8), stateOf(got, SectorSize-16)
	if last-before != step {
		return ID{}, false
	}
	x := last
	for range (SectorSize - offBody) / 8 {
		x -= step
	}
	place := unmix(unmix(x) ^ want.Seed)
	if g := unmix(place ^ want.Sector); g < plausible && g != want.Generation {
		return ID{Seed: want.Seed, Sector: want.Sector, Generation: g}, true
	}
	for back := uint64(0); back <= want.earlier(); back++ {
		g := want.Generation - back
		if s := place ^ mix(g); s < plausible && s != want.Sector {
			return ID{Seed: want.Seed, Sector: s, Generation: g}, true
		}
	}
	return ID{}, false
}

// stateOf is the state of the body's stream at the word at a byte.
func stateOf(s []byte, at int) uint64 { return unmix(binary.LittleEndian.Uint64(s[at:])) }

func commonPrefix(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func commonSuffix(a, b []byte) int {
	for i := range a {
		if a[len(a)-1-i] != b[len(b)-1-i] {
			return i
		}
	}
	return len(a)
}

// uniform names a buffer that is all poison or all zeros.
func uniform(b []byte) Kind {
	if IsZeros(b) {
		return Zeros
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], poison)
	if isRepeated(b, word[:]) {
		return Unwritten
	}
	return ""
}

func isRepeated(b, word []byte) bool {
	for ; len(b) >= len(word); b = b[len(word):] {
		if !bytes.Equal(b[:len(word)], word) {
			return false
		}
	}
	return len(b) == 0
}
