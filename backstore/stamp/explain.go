package stamp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A Kind names what is wrong with a sector.
type Kind string

// The kinds of mismatch, by what must have happened.
const (
	// Unwritten: the buffer still holds its poison: the read reported data that never landed.
	Unwritten Kind = "unwritten"
	// Zeros: all zero: the write was lost, or the range was unmapped.
	Zeros Kind = "zeros"
	// Stale: the right sector of an earlier generation: a lost write.
	Stale Kind = "stale"
	// Newer: the right sector of a later generation than expected.
	Newer Kind = "newer"
	// Misplaced: a whole sector that belongs elsewhere: misdirected write or read.
	Misplaced Kind = "misplaced"
	// OtherWriter: a whole sector of another seed: somebody else wrote here.
	OtherWriter Kind = "other-writer"
	// Torn: right up to byte N, something else from there.
	Torn Kind = "torn"
	// BitFlip: few bits differ.
	BitFlip Kind = "bit-flip"
	// Foreign: bytes that no stamp explains.
	Foreign Kind = "foreign"
)

// A Mismatch is one wrong sector, explained.
type Mismatch struct {
	Kind Kind `json:"kind"`
	Want ID   `json:"want"`
	// Found is what the sector says of itself, if HasFound.
	Found    ID   `json:"found"`
	HasFound bool `json:"has_found"`
	// First is the first byte of the sector that differs, Differ how many do.
	First  int `json:"first_byte"`
	Differ int `json:"bytes_differing"`
	// Rest says for Torn what the bytes from First on are.
	Rest Kind `json:"rest,omitempty"`
	// Expected and Got are copies of the sector.
	Expected []byte `json:"-"`
	Got      []byte `json:"-"`
}

// OffsetBytes is where on the disk the first wrong byte is.
func (m *Mismatch) OffsetBytes() int64 { return int64(m.Want.Sector)*SectorSize + int64(m.First) }

func (m *Mismatch) String() string {
	head := fmt.Sprintf("sector %d (byte %d): expected seed=%d generation=%d, ",
		m.Want.Sector, m.OffsetBytes(), m.Want.Seed, m.Want.Generation)
	return head + "found " + m.what()
}

func (m *Mismatch) what() string {
	switch m.Kind {
	case Unwritten:
		return "the poison put there before the read: the data had not landed"
	case Zeros:
		return "zeros: the write was lost or the range unmapped"
	case Stale:
		return fmt.Sprintf("generation %d: an older write of this sector (lost write)", m.Found.Generation)
	case Newer:
		return fmt.Sprintf("generation %d: a newer write of this sector", m.Found.Generation)
	case Misplaced:
		return fmt.Sprintf("sector %d of generation %d: another sector's data (misdirected)", m.Found.Sector, m.Found.Generation)
	case OtherWriter:
		return fmt.Sprintf("sector %d of seed %d: another writer's data", m.Found.Sector, m.Found.Seed)
	case Torn:
		return fmt.Sprintf("the right bytes up to %d, then %s (torn)", m.First, m.Rest)
	case BitFlip:
		return fmt.Sprintf("%d wrong byte(s) from byte %d on: %s", m.Differ, m.First, m.flips())
	default:
		return fmt.Sprintf("foreign bytes from byte %d on: %x…", m.First, m.Got[m.First:min(m.First+16, SectorSize)])
	}
}

// flips shows the first wrong byte.
func (m *Mismatch) flips() string {
	return fmt.Sprintf("want %02x, got %02x", m.Expected[m.First], m.Got[m.First])
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
		m.Kind = BitFlip
	default:
		m.Kind, m.Rest = kindOfTail(id, got, m.First)
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

// tornUnit is the granularity at which a torn sector is looked for: nothing tears finer than a word.
const tornUnit = 8

// kindOfTail explains a sector that carries no whole stamp: its head is right, or an older generation's
// tail shows, or nothing is known.
func kindOfTail(id ID, got []byte, first int) (kind, rest Kind) {
	if first < offBody {
		return Foreign, ""
	}
	tail := got[first&^(tornUnit-1):]
	if k := uniform(tail); k != "" {
		return Torn, k
	}
	var old [SectorSize]byte
	for g := id.Generation; g > 0 && id.Generation-g < 16; {
		g--
		fillOne(old[:], ID{Seed: id.Seed, Sector: id.Sector, Generation: g})
		if bytes.HasSuffix(old[:], tail[tornUnit:]) && len(tail) > tornUnit {
			return Torn, Stale
		}
	}
	return Torn, Foreign
}

// uniform names a buffer that is all poison or all zeros.
func uniform(b []byte) Kind {
	var word [8]byte
	if isRepeated(b, word[:]) {
		return Zeros
	}
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
