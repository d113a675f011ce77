package iscsi

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestSize is the size of a header or data digest in bytes (RFC 7143, 11.2.3).
const DigestSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Digest is a CRC32C (RFC 7143, 13.1). The zero value is the digest of nothing. A data digest covers
// the padding too.
type Digest uint32

// Add is the digest of what d covers followed by b.
func (d Digest) Add(b []byte) Digest { return Digest(crc32.Update(uint32(d), castagnoli, b)) }

// Put writes d as it stands on the wire into the first DigestSize bytes of b. The CRC is sent bit 31 first
// in the reflected order of the polynomial, which makes it little-endian, unlike everything else
// (RFC 7143, 13.1 and RFC 3720, B.4).
func (d Digest) Put(b []byte) { binary.LittleEndian.PutUint32(b, uint32(d)) }

// DigestFrom reads a digest from the first DigestSize bytes of b.
func DigestFrom(b []byte) Digest { return Digest(binary.LittleEndian.Uint32(b)) }
