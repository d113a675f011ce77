package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of Parse.
var (
	ErrShort   = errors.New("packet too short")
	ErrLength  = errors.New("packet length is not a multiple of 4")
	ErrVersion = errors.New("unknown transport header version")
	ErrOpcode  = errors.New("unknown opcode")
	ErrPad     = errors.New("pad longer than the payload")
)

// A QPN is a 24-bit queue pair number.
type QPN uint32

// GSI is the queue pair of the connection manager.
const GSI QPN = 1

// A PSN is a 24-bit packet sequence number. Its order wraps (IBTA 9.7.2).
type PSN uint32

const psnMask = 0xffffff

// Add is a+n.
func (a PSN) Add(n uint32) PSN { return PSN(uint32(a)+n) & psnMask }

// Sub is the signed distance from b to a.
func (a PSN) Sub(b PSN) int32 { return int32(uint32(a-b)<<8) >> 8 }

// Before reports whether a comes before b.
func (a PSN) Before(b PSN) bool { return a.Sub(b) < 0 }

// A Packet is what stands behind a UDP header, from BTH to ICRC: a view of the bytes received or to be sent.
// Parse has checked one from the wire; New makes one to be filled.
type Packet []byte

// Parse checks lengths, version and opcode, so that every accessor that the opcode has is safe afterwards. It
// does not check the ICRC.
func Parse(b []byte) (Packet, error) {
	if len(b) < BTHSize+ICRCSize {
		return nil, ErrShort
	}
	if len(b)%4 != 0 {
		return nil, ErrLength
	}
	p := Packet(b)
	l := &layouts[b[0]]
	switch {
	case l.traits == 0:
		return nil, ErrOpcode
	case b[1]&0x0f != 0:
		return nil, ErrVersion
	case len(b) < l.headers+ICRCSize:
		return nil, ErrShort
	case len(b)-l.headers-ICRCSize < p.Pad():
		return nil, ErrPad
	}
	return p, nil
}

// New lays out a packet of an opcode with room for n payload bytes at the front of b, headers zeroed, pad counted
// and zeroed. It panics if b is too small.
func New(b []byte, op Opcode, n int) Packet {
	pad := -n & 3
	size := op.HeaderSize() + n + pad + ICRCSize
	if op.Traits() == 0 || len(b) < size {
		panic(fmt.Sprintf("wire: %v with %d bytes does not fit %d", op, n, len(b)))
	}
	p := Packet(b[:size:size])
	clear(p[:op.HeaderSize()])
	clear(p[size-ICRCSize-pad:])
	p[0] = byte(op)
	p[1] = byte(pad) << 4
	binary.BigEndian.PutUint16(p[2:], DefaultPKey)
	return p
}

// DefaultPKey is the default partition, full member.
const DefaultPKey = 0xffff

// Opcode is the packet's.
func (p Packet) Opcode() Opcode { return Opcode(p[0]) }

// Solicited is the solicited-event bit.
func (p Packet) Solicited() bool { return p[1]&0x80 != 0 }

// Migrated is the migration-state bit.
func (p Packet) Migrated() bool { return p[1]&0x40 != 0 }

// Pad is how many bytes follow the payload to make it a multiple of 4.
func (p Packet) Pad() int { return int(p[1] >> 4 & 3) }

// PKey is the partition key; its top bit is the membership.
func (p Packet) PKey() uint16 { return binary.BigEndian.Uint16(p[2:]) }

// DestQP is the queue pair that the packet is for.
func (p Packet) DestQP() QPN { return QPN(binary.BigEndian.Uint32(p[4:]) & psnMask) }

// AckReq asks for an acknowledgement.
func (p Packet) AckReq() bool { return p[8]&0x80 != 0 }

// PSN is the packet's sequence number.
func (p Packet) PSN() PSN { return PSN(binary.BigEndian.Uint32(p[8:]) & psnMask) }

// SetSolicited, SetMigrated and SetAckReq set their bits.
func (p Packet) SetSolicited() { p[1] |= 0x80 }

// SetMigrated sets the migration-state bit, as NICs do.
func (p Packet) SetMigrated() { p[1] |= 0x40 }

// SetAckReq asks for an acknowledgement.
func (p Packet) SetAckReq() { p[8] |= 0x80 }

// SetPKey sets the partition key.
func (p Packet) SetPKey(k uint16) { binary.BigEndian.PutUint16(p[2:], k) }

// SetDestQP sets the destination and keeps the byte before it (FECN, BECN).
func (p Packet) SetDestQP(q QPN) {
	p[5], p[6], p[7] = byte(q>>16), byte(q>>8), byte(q)
}

// SetPSN sets the sequence number.
func (p Packet) SetPSN(n PSN) {
	p[9], p[10], p[11] = byte(n>>16), byte(n>>8), byte(n)
}

// Payload is the data without pad.
func (p Packet) Payload() []byte {
	return p[p.Opcode().HeaderSize() : len(p)-ICRCSize-p.Pad()]
}

// RETH is the RDMA extended header: address, key and the length of the whole operation (IBTA 9.3.3). The opcode
// must have one.
func (p Packet) RETH() (va uint64, key, length uint32) {
	h := p[BTHSize : BTHSize+RETHSize]
	return binary.BigEndian.Uint64(h), binary.BigEndian.Uint32(h[8:]), binary.BigEndian.Uint32(h[12:])
}

// SetRETH sets it.
func (p Packet) SetRETH(va uint64, key, length uint32) {
	h := p[BTHSize : BTHSize+RETHSize]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], key)
	binary.BigEndian.PutUint32(h[12:], length)
}

// A Syndrome is the first byte of an AETH (IBTA 9.7.5.2).
type Syndrome uint8

// The syndromes.
const (
	Ack               Syndrome = 0x1f // no credit information
	RNRNak            Syndrome = 0x20 // | timer code
	NakSequence       Syndrome = 0x60
	NakInvalidRequest Syndrome = 0x61
	NakRemoteAccess   Syndrome = 0x62
	NakRemoteOp       Syndrome = 0x63
)

// IsAck, IsRNR and IsNak name the class.
func (s Syndrome) IsAck() bool { return s>>5&3 == 0 }

// IsRNR reports a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s>>5&3 == 1 }

// IsNak reports a NAK.
func (s Syndrome) IsNak() bool { return s>>5&3 == 3 }

// AETH is the acknowledge extended header: syndrome and message sequence number.
func (p Packet) AETH() (s Syndrome, msn uint32) {
	w := binary.BigEndian.Uint32(p[BTHSize:])
	return Syndrome(w >> 24), w & psnMask
}

// SetAETH sets it.
func (p Packet) SetAETH(s Syndrome, msn uint32) {
	binary.BigEndian.PutUint32(p[BTHSize:], uint32(s)<<24|msn&psnMask)
}

// DETH is the datagram extended header: Q_Key and source queue pair.
func (p Packet) DETH() (qkey uint32, src QPN) {
	return binary.BigEndian.Uint32(p[BTHSize:]), QPN(binary.BigEndian.Uint32(p[BTHSize+4:]) & psnMask)
}

// SetDETH sets it.
func (p Packet) SetDETH(qkey uint32, src QPN) {
	binary.BigEndian.PutUint32(p[BTHSize:], qkey)
	binary.BigEndian.PutUint32(p[BTHSize+4:], uint32(src)&psnMask)
}

// Imm is the immediate data, the last header of those that have it.
func (p Packet) Imm() uint32 {
	n := p.Opcode().HeaderSize()
	return binary.BigEndian.Uint32(p[n-ImmSize:])
}

// SetImm sets it.
func (p Packet) SetImm(v uint32) {
	n := p.Opcode().HeaderSize()
	binary.BigEndian.PutUint32(p[n-ImmSize:], v)
}

// InvalidateKey is the key in the IETH.
func (p Packet) InvalidateKey() uint32 { return p.Imm() }

// SetInvalidateKey sets it.
func (p Packet) SetInvalidateKey(k uint32) { p.SetImm(k) }
