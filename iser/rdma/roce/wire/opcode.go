package wire

import "fmt"

// Port is the UDP destination port of RoCEv2, in both directions.
const Port = 4791

// An Opcode is the first byte of a packet: transport and operation (IBTA 9.2, table 38).
type Opcode uint8

// The opcodes of reliable connections, and UD SEND for management datagrams.
const (
	SendFirst        Opcode = 0x00
	SendMiddle       Opcode = 0x01
	SendLast         Opcode = 0x02
	SendLastImm      Opcode = 0x03
	SendOnly         Opcode = 0x04
	SendOnlyImm      Opcode = 0x05
	WriteFirst       Opcode = 0x06
	WriteMiddle      Opcode = 0x07
	WriteLast        Opcode = 0x08
	WriteLastImm     Opcode = 0x09
	WriteOnly        Opcode = 0x0a
	WriteOnlyImm     Opcode = 0x0b
	ReadRequest      Opcode = 0x0c
	ReadRespFirst    Opcode = 0x0d
	ReadRespMiddle   Opcode = 0x0e
	ReadRespLast     Opcode = 0x0f
	ReadRespOnly     Opcode = 0x10
	Acknowledge      Opcode = 0x11
	AtomicAck        Opcode = 0x12
	CompareSwap      Opcode = 0x13
	FetchAdd         Opcode = 0x14
	SendLastInv      Opcode = 0x16
	SendOnlyInv      Opcode = 0x17
	UDSendOnly       Opcode = 0x64
	UDSendOnlyImm    Opcode = 0x65
	CongestionNotify Opcode = 0x81
)

// Sizes of headers in bytes (IBTA 9.2 to 9.3).
const (
	BTHSize       = 12
	RETHSize      = 16
	AETHSize      = 4
	DETHSize      = 8
	ImmSize       = 4
	IETHSize      = 4
	AtomicSize    = 28
	AtomicAckSize = 8
	ICRCSize      = 4
	// MaxHeaders is the most that stands around a payload of the operations here.
	MaxHeaders = BTHSize + RETHSize + ImmSize + ICRCSize
)

// Traits say what a packet of an opcode is.
type Traits uint16

// The traits. A packet that is both First and Last is an Only.
const (
	First Traits = 1 << iota // begins a message
	Last                     // ends a message
	Request
	Response
	Send
	Write
	Read
	hasRETH
	hasAETH
	hasDETH
	hasImm
	hasIETH
	hasAtomic
	hasAtomicAck
	known
)

type layout struct {
	name    string
	traits  Traits
	headers int // bytes before the payload, BTH included
}

var layouts = func() (t [256]layout) {
	set := func(op Opcode, name string, tr Traits) {
		n := BTHSize
		for _, h := range []struct {
			bit  Traits
			size int
		}{{hasDETH, DETHSize}, {hasRETH, RETHSize}, {hasAtomic, AtomicSize}, {hasAETH, AETHSize}, {hasAtomicAck, AtomicAckSize}, {hasImm, ImmSize}, {hasIETH, IETHSize}} {
			if tr&h.bit != 0 {
				n += h.size
			}
		}
		t[op] = layout{name, tr | known, n}
	}
	set(SendFirst, "SEND First", Request|Send|First)
	set(SendMiddle, "SEND Middle", Request|Send)
	set(SendLast, "SEND Last", Request|Send|Last)
	set(SendLastImm, "SEND Last with Immediate", Request|Send|Last|hasImm)
	set(SendOnly, "SEND Only", Request|Send|First|Last)
	set(SendOnlyImm, "SEND Only with Immediate", Request|Send|First|Last|hasImm)
	set(WriteFirst, "RDMA WRITE First", Request|Write|First|hasRETH)
	set(WriteMiddle, "RDMA WRITE Middle", Request|Write)
	set(WriteLast, "RDMA WRITE Last", Request|Write|Last)
	set(WriteLastImm, "RDMA WRITE Last with Immediate", Request|Write|Last|hasImm)
	set(WriteOnly, "RDMA WRITE Only", Request|Write|First|Last|hasRETH)
	set(WriteOnlyImm, "RDMA WRITE Only with Immediate", Request|Write|First|Last|hasRETH|hasImm)
	set(ReadRequest, "RDMA READ Request", Request|Read|First|Last|hasRETH)
	set(ReadRespFirst, "RDMA READ Response First", Response|Read|First|hasAETH)
	set(ReadRespMiddle, "RDMA READ Response Middle", Response|Read)
	set(ReadRespLast, "RDMA READ Response Last", Response|Read|Last|hasAETH)
	set(ReadRespOnly, "RDMA READ Response Only", Response|Read|First|Last|hasAETH)
	set(Acknowledge, "Acknowledge", Response|First|Last|hasAETH)
	set(AtomicAck, "ATOMIC Acknowledge", Response|First|Last|hasAETH|hasAtomicAck)
	set(CompareSwap, "Compare & Swap", Request|First|Last|hasAtomic)
	set(FetchAdd, "Fetch & Add", Request|First|Last|hasAtomic)
	set(SendLastInv, "SEND Last with Invalidate", Request|Send|Last|hasIETH)
	set(SendOnlyInv, "SEND Only with Invalidate", Request|Send|First|Last|hasIETH)
	set(UDSendOnly, "UD SEND Only", Request|Send|First|Last|hasDETH)
	set(UDSendOnlyImm, "UD SEND Only with Immediate", Request|Send|First|Last|hasDETH|hasImm)
	set(CongestionNotify, "Congestion Notification", First|Last)
	return t
}()

// Traits are the opcode's; zero for one that is not known.
func (o Opcode) Traits() Traits { return layouts[o].traits }

// Is reports whether all of t hold.
func (o Opcode) Is(t Traits) bool { return layouts[o].traits&t == t }

// HeaderSize is the number of bytes before the payload.
func (o Opcode) HeaderSize() int { return layouts[o].headers }

// HasRETH, HasImm and HasIETH tell which headers a packet of this opcode has.
func (o Opcode) HasRETH() bool { return o.Is(hasRETH) }

// HasImm reports whether the packet carries immediate data.
func (o Opcode) HasImm() bool { return o.Is(hasImm) }

// HasIETH reports whether the packet names a key to invalidate.
func (o Opcode) HasIETH() bool { return o.Is(hasIETH) }

// String is the opcode's name.
func (o Opcode) String() string {
	if n := layouts[o].name; n != "" {
		return n
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
