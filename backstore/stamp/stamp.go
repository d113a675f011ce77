// Package stamp makes and checks self-describing sectors. Each 512-byte sector carries its own address, a
// generation, a seed and a checksum, and a body that depends on all of them, so that a wrong sector does
// not only fail a comparison but says where its bytes came from.
package stamp

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
)

// SectorSize is the size of a stamped sector in bytes, whatever the disk's block size.
const SectorSize = 512

// The header of a sector, little-endian:
//
//	0      8       16        24           32        40..511
//	magic  seed    sector    generation   CRC32C    body
//
// The checksum covers the sector with its own field zero.
const (
	offMagic  = 0
	offSeed   = 8
	offSector = 16
	offGen    = 24
	offCRC    = 32
	offBody   = 40
)

const (
	magic  = 0x31727473_72657369 // "isertsr1" in memory
	poison = 0xfeedface_deadbeef
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Zeroed is the generation of a sector that was zeroed or unmapped: such a sector is all zeros, and says nothing of
// itself. No stamp has it.
const Zeroed = math.MaxUint64

// An ID is what a sector says of itself.
type ID struct {
	Seed       uint64 `json:"seed"`
	Sector     uint64 `json:"sector"` // byte offset on the disk / SectorSize
	Generation uint64 `json:"generation"`
}

// Fill stamps p, whose length is a multiple of SectorSize; id is that of the first sector. Generation Zeroed clears p.
func Fill(p []byte, id ID) {
	for ; len(p) >= SectorSize; p = p[SectorSize:] {
		fillOne(p[:SectorSize:SectorSize], id)
		id.Sector++
	}
}

func fillOne(s []byte, id ID) {
	if id.Generation == Zeroed {
		clear(s)
		return
	}
	le := binary.LittleEndian
	le.PutUint64(s[offMagic:], magic)
	le.PutUint64(s[offSeed:], id.Seed)
	le.PutUint64(s[offSector:], id.Sector)
	le.PutUint64(s[offGen:], id.Generation)
	le.PutUint64(s[offCRC:], 0)
	x := mix(id.Seed ^ mix(id.Sector^mix(id.Generation)))
	for i := offBody; i < SectorSize; i += 8 {
		x += step
		le.PutUint64(s[i:], mix(x))
	}
	le.PutUint32(s[offCRC:], crc32.Checksum(s, castagnoli))
}

// step is that of splitmix64, whose state makes the words of a body.
const step = 0x9e3779b97f4a7c15

// mix is the finaliser of splitmix64: a bijection with good avalanche.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unmix undoes mix: a shift by s is undone by shifts of s and of 2 s, the factors by their inverses modulo 2^64.
func unmix(x uint64) uint64 {
	x = (x ^ x>>31 ^ x>>62) * 0x319642b2d24d8ec3
	x = (x ^ x>>27 ^ x>>54) * 0x96de1b173f119089
	return x ^ x>>30 ^ x>>60
}

// Poison fills p with a value that no sector has: what is still poison after a read was never written
// by it.
func Poison(p []byte) {
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, poison)
	}
	for i := range p {
		p[i] = 0xef
	}
}

// IsZeros reports whether p is all zeros. Its length is a multiple of 8 bytes.
func IsZeros(p []byte) bool {
	var word [8]byte
	return isRepeated(p, word[:])
}

// A Checker compares sectors with what they should be. It is not for concurrent use.
type Checker struct {
	want [SectorSize]byte
}

// Check compares p with the stamps that Fill(p, id) would have made and explains the first sector that
// differs; nil if all are right.
func (c *Checker) Check(p []byte, id ID) *Mismatch {
	for ; len(p) >= SectorSize; p = p[SectorSize:] {
		fillOne(c.want[:], id)
		if !bytes.Equal(c.want[:], p[:SectorSize]) {
			return explain(c.want[:], p[:SectorSize], id)
		}
		id.Sector++
	}
	return nil
}

// Parse reads what a sector of SectorSize bytes says of itself; ok is false if it carries no stamp at all, valid
// is whether every byte of it is that stamp's.
func (c *Checker) Parse(s []byte) (id ID, ok, valid bool) {
	le := binary.LittleEndian
	if le.Uint64(s[offMagic:]) != magic || le.Uint64(s[offGen:]) == Zeroed {
		return ID{}, false, false
	}
	id = ID{Seed: le.Uint64(s[offSeed:]), Sector: le.Uint64(s[offSector:]), Generation: le.Uint64(s[offGen:])}
	fillOne(c.want[:], id)
	return id, true, bytes.Equal(c.want[:], s)
}
