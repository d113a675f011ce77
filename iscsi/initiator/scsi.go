package initiator

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/goiser/goiser/iscsi"
)

// Operation codes (SPC-4, SBC-3).
const (
	opTestUnitReady      = 0x00
	opInquiry            = 0x12
	opModeSense6         = 0x1a
	opReadCapacity10     = 0x25
	opRead10             = 0x28
	opWrite10            = 0x2a
	opSynchronizeCache10 = 0x35
	opRead16             = 0x88
	opWrite16            = 0x8a
	opServiceActionIn16  = 0x9e
	opReportLUNs         = 0xa0

	actionReadCapacity16 = 0x10

	fuaBit = 0x08 // in byte 1 of WRITE (SBC-3, 5.37)
)

const (
	maxInquiry     = 4096
	firstLUNList   = 8 + 256*8
	maxLUNList     = 8 + (iscsi.MaxLUNNumber+1)*8
	maxBlocks10    = math.MaxUint16
	pageBlockLimit = 0xb0
)

// readWriteCDB writes a READ or WRITE of blocks blocks at lba into b and returns the part used: the 10-byte
// form where it reaches, since every target has it.
func readWriteCDB(b *[16]byte, write bool, lba uint64, blocks uint32) []byte {
	*b = [16]byte{}
	if lba+uint64(blocks) <= math.MaxUint32 && blocks <= maxBlocks10 {
		if b[0] = opRead10; write {
			b[0] = opWrite10
		}
		binary.BigEndian.PutUint32(b[2:], uint32(lba))
		binary.BigEndian.PutUint16(b[7:], uint16(blocks))
		return b[:10]
	}
	if b[0] = opRead16; write {
		b[0] = opWrite16
	}
	binary.BigEndian.PutUint64(b[2:], lba)
	binary.BigEndian.PutUint32(b[10:], blocks)
	return b[:16]
}

// query runs a command that reads parameter data, and returns the data.
func (s *Session) query(ctx context.Context, lun iscsi.LUN, cdb []byte, room int) ([]byte, error) {
	c := Command{LUN: lun, CDB: cdb, In: make([]byte, room)}
	r, err := s.Do(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.In[:r.Received], r.Err()
}

// LUNs asks REPORT LUNS.
func (s *Session) LUNs(ctx context.Context) ([]iscsi.LUN, error) {
	room := firstLUNList
	for {
		cdb := make([]byte, 12)
		cdb[0] = opReportLUNs
		binary.BigEndian.PutUint32(cdb[6:], uint32(room))
		b, err := s.attentive(ctx, 0, nil, cdb, room)
		if err != nil {
			return nil, err
		}
		if len(b) < 8 {
			return nil, violation("REPORT LUNS answered with %d bytes", len(b))
		}
		need := 8 + uint64(binary.BigEndian.Uint32(b))
		if need > uint64(room) && room < maxLUNList {
			room = int(min(need, maxLUNList))
			continue
		}
		var luns []iscsi.LUN
		for b = b[8:min(need, uint64(len(b)))]; len(b) >= 8; b = b[8:] {
			luns = append(luns, iscsi.LUN(binary.BigEndian.Uint64(b)))
		}
		return luns, nil
	}
}

// Inquiry returns standard INQUIRY data, or a VPD page if vpd is true.
func (s *Session) Inquiry(ctx context.Context, lun iscsi.LUN, vpd bool, page uint8) ([]byte, error) {
	cdb := make([]byte, 6)
	cdb[0] = opInquiry
	if vpd {
		cdb[1], cdb[2] = 1, page
	}
	room := 255
	if vpd {
		room = maxInquiry
	}
	binary.BigEndian.PutUint16(cdb[3:], uint16(room))
	b, err := s.query(ctx, lun, cdb, room)
	if err != nil {
		return nil, err
	}
	if len(b) < 5 {
		return nil, violation("INQUIRY answered with %d bytes", len(b))
	}
	n := 5 + int(b[4])
	if vpd {
		if b[1] != page {
			return nil, violation("INQUIRY for page %#02x answered with page %#02x", page, b[1])
		}
		n = 4 + int(binary.BigEndian.Uint16(b[2:]))
	}
	return b[:min(n, len(b))], nil
}
