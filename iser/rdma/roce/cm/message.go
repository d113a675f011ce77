package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// MADSize is the size of a management datagram in bytes (IBTA 13.4).
const MADSize = 256

// QKey is the well-known Q_Key of queue pair 1 (IBTA 10.2.5).
const QKey = 0x80010000

// Attribute says which message a MAD is (IBTA 12.6, table 98).
type Attribute uint16

// The messages. LAP, APR and SIDR are not used on RoCE for connections.
const (
	AttrREQ  Attribute = 0x0010
	AttrMRA  Attribute = 0x0011
	AttrREJ  Attribute = 0x0012
	AttrREP  Attribute = 0x0013
	AttrRTU  Attribute = 0x0014
	AttrDREQ Attribute = 0x0015
	AttrDREP Attribute = 0x0016
)

// Room for the consumer's private data in each message, bytes. A REQ has 56 behind the 36 of the RDMA CM.
const (
	REQPrivate  = 56
	MRAPrivate  = 222
	REJPrivate  = 148
	REPPrivate  = 196
	RTUPrivate  = 224
	DREQPrivate = 220
	DREPPrivate = 224
)

// Reason is why a connection is refused (IBTA 12.6.7.2).
type Reason uint16

// The reasons that we send or name.
const (
	ReasonNoQP           Reason = 1
	ReasonNoResources    Reason = 3
	ReasonTimeout        Reason = 4
	ReasonUnsupported    Reason = 5
	ReasonInvalidCommID  Reason = 6
	ReasonInvalidService Reason = 8
	ReasonTransport      Reason = 9
	ReasonStale          Reason = 10
	ReasonInvalidGID     Reason = 12
	ReasonInvalidMTU     Reason = 26
	ReasonConsumer       Reason = 28
	ReasonDuplicateID    Reason = 30
	ReasonClassVersion   Reason = 31
)

// Which message a REJ or MRA is about (IBTA 12.6.7.1).
const (
	AboutREQ   = 0
	AboutREP   = 1
	AboutOther = 2
)

// Errors of parsing.
var (
	ErrShort = errors.New("management datagram too short")
	ErrClass = errors.New("not a connection manager datagram")
	ErrCMA   = errors.New("unknown RDMA CM header")
)

// A Header is the common part of a MAD (IBTA 13.4.2). The class is 7, its version 2, the method Send.
type Header struct {
	Transaction uint64
	Attribute   Attribute
}

const (
	madHeader    = 24
	baseVersion  = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3
)

// ParseHeader reads a MAD's header and returns the message behind it.
func ParseHeader(mad []byte) (h Header, body []byte, err error) {
	if len(mad) < MADSize {
		return h, nil, ErrShort
	}
	if mad[0] != baseVersion || mad[1] != classCM || mad[2] != classVersion || mad[3]&0x7f != methodSend {
		return h, nil, ErrClass
	}
	h.Transaction = binary.BigEndian.Uint64(mad[8:])
	h.Attribute = Attribute(binary.BigEndian.Uint16(mad[16:]))
	return h, mad[madHeader:MADSize], nil
}

// put writes the header and clears the message behind it.
func (h Header) put(mad *[MADSize]byte) (body []byte) {
	clear(mad[:])
	mad[0], mad[1], mad[2], mad[3] = baseVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(mad[8:], h.Transaction)
	binary.BigEndian.PutUint16(mad[16:], uint16(h.Attribute))
	return mad[madHeader:]
}

// A REQ asks for a connection (IBTA 12.6.5), with the RDMA CM's header in front of the consumer's private data
// (IBTA A11.6).
type REQ struct {
	LocalID            uint32
	ServiceID          uint64
	GUID               uint64
	QPN                uint32
	ResponderResources uint8 // RDMA Reads the sender can serve
	InitiatorDepth     uint8 // RDMA Reads it will have outstanding
	RemoteTimeout      uint8 // 5 bits: 4.096 us * 2^n to answer
	LocalTimeout       uint8
	PSN                uint32 // the first that the sender expects
	RetryCount         uint8  // 3 bits
	RNRRetry           uint8
	PKey               uint16
	MTU                uint8 // 1..5: 256..4096
	MaxRetries         uint8 // 4 bits, of CM messages
	Transport          uint8 // 0: reliable connection
	LocalGID           netip.Addr
	RemoteGID          netip.Addr
	FlowLabel          uint32 // 20 bits
	TrafficClass       uint8
	HopLimit           uint8
	AckTimeout         uint8 // 5 bits
	// Of the RDMA CM header.
	SrcPort          uint16
	SrcAddr, DstAddr netip.Addr
	Private          [REQPrivate]byte
}

// permissive stands for "no LID": the path goes by GID.
const permissive = 0xffff

// Put writes the MAD.
func (m *REQ) Put(mad *[MADSize]byte, transaction uint64) {
	b := Header{transaction, AttrREQ}.put(mad)
	be := binary.BigEndian
	be.PutUint32(b[0:], m.LocalID)
	be.PutUint64(b[8:], m.ServiceID)
	be.PutUint64(b[16:], m.GUID)
	be.PutUint32(b[32:], m.QPN<<8|uint32(m.ResponderResources))
	be.PutUint32(b[36:], uint32(m.InitiatorDepth))
	b[43] = m.RemoteTimeout<<3 | m.Transport<<1&6
	be.PutUint32(b[44:], m.PSN<<8|uint32(m.LocalTimeout<<3|m.RetryCount&7))
	be.PutUint16(b[48:], m.PKey)
	b[50] = m.MTU<<4 | m.RNRRetry&7
	b[51] = m.MaxRetries << 4
	be.PutUint16(b[52:], permissive)
	be.PutUint16(b[54:], permissive)
	putGID(b[56:], m.LocalGID)
	putGID(b[72:], m.RemoteGID)
	be.PutUint32(b[88:], m.FlowLabel<<12)
	b[92], b[93] = m.TrafficClass, m.HopLimit
	b[95] = m.AckTimeout << 3
	m.putCMA(b[140:])
	copy(b[176:], m.Private[:])
}

// putCMA writes the RDMA CM header: version 0, the IP version, the source port, both addresses.
func (m *REQ) putCMA(b []byte) {
	b[1] = 4 << 4
	if m.SrcAddr.Unmap().Is6() {
		b[1] = 6 << 4
	}
	binary.BigEndian.PutUint16(b[2:], m.SrcPort)
	putIP(b[4:], m.SrcAddr)
	putIP(b[20:], m.DstAddr)
}

// Parse reads a message that ParseHeader has returned.
func (m *REQ) Parse(b []byte) error {
	if len(b) < MADSize-madHeader {
		return ErrShort
	}
	be := binary.BigEndian
	m.LocalID = be.Uint32(b[0:])
	m.ServiceID = be.Uint64(b[8:])
	m.GUID = be.Uint64(b[16:])
	m.QPN, m.ResponderResources = be.Uint32(b[32:])>>8, b[35]
	m.InitiatorDepth = b[39]
	m.RemoteTimeout, m.Transport = b[43]>>3, b[43]>>1&3
	m.PSN = be.Uint32(b[44:]) >> 8
	m.LocalTimeout, m.RetryCount = b[47]>>3, b[47]&7
	m.PKey = be.Uint16(b[48:])
	m.MTU, m.RNRRetry = b[50]>>4, b[50]&7
	m.MaxRetries = b[51] >> 4
	m.LocalGID, m.RemoteGID = gid(b[56:]), gid(b[72:])
	m.FlowLabel = be.Uint32(b[88:]) >> 12
	m.TrafficClass, m.HopLimit = b[92], b[93]
	m.AckTimeout = b[95] >> 3
	copy(m.Private[:], b[176:])
	return m.parseCMA(b[140:])
}

func (m *REQ) parseCMA(b []byte) error {
	v := b[1] >> 4
	if b[0] != 0 || v != 4 && v != 6 {
		return ErrCMA
	}
	m.SrcPort = binary.BigEndian.Uint16(b[2:])
	m.SrcAddr, m.DstAddr = ip(b[4:20], v), ip(b[20:36], v)
	return nil
}

// putGID writes an address as a GID: IPv4 as ::ffff:a.b.c.d.
func putGID(b []byte, a netip.Addr) {
	if a.IsValid() {
		g := a.As16()
		copy(b, g[:])
	}
}

func gid(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[:16])).Unmap() }

// putIP writes an address of the RDMA CM header: IPv4 in the last four bytes of 16.
func putIP(b []byte, a netip.Addr) {
	switch a = a.Unmap(); {
	case a.Is4():
		copy(b[12:16], a.AsSlice())
	case a.Is6():
		copy(b[:16], a.AsSlice())
	}
}

func ip(b []byte, version uint8) netip.Addr {
	if version == 4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[:16]))
}

// A REP grants a connection (IBTA 12.6.8).
type REP struct {
	LocalID, RemoteID  uint32
	QPN                uint32
	PSN                uint32 // the first that the sender expects
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits
	RNRRetry           uint8 // of the other side's requester
	GUID               uint64
	Private            [REPPrivate]byte
}

// Put writes the MAD.
func (m *REP) Put(mad *[MADSize]byte, transaction uint64) {
	b := Header{transaction, AttrREP}.put(mad)
	be := binary.BigEndian
	be.PutUint32(b[0:], m.LocalID)
	be.PutUint32(b[4:], m.RemoteID)
	be.PutUint32(b[12:], m.QPN<<8)
	be.PutUint32(b[20:], m.PSN<<8)
	b[24], b[25] = m.ResponderResources, m.InitiatorDepth
	b[26] = m.AckDelay << 3
	b[27] = m.RNRRetry << 5
	be.PutUint64(b[28:], m.GUID)
	copy(b[36:], m.Private[:])
}

// Parse reads a message that ParseHeader has returned.
func (m *REP) Parse(b []byte) error {
	if len(b) < MADSize-madHeader {
		return ErrShort
	}
	be := binary.BigEndian
	m.LocalID, m.RemoteID = be.Uint32(b[0:]), be.Uint32(b[4:])
	m.QPN, m.PSN = be.Uint32(b[12:])>>8, be.Uint32(b[20:])>>8
	m.ResponderResources, m.InitiatorDepth = b[24], b[25]
	m.AckDelay, m.RNRRetry = b[26]>>3, b[27]>>5
	m.GUID = be.Uint64(b[28:])
	copy(m.Private[:], b[36:])
	return nil
}

// A REJ refuses a connection (IBTA 12.6.7).
type REJ struct {
	LocalID, RemoteID uint32
	About             uint8 // AboutREQ, AboutREP or AboutOther
	Reason            Reason
	// GUID, if not 0, is additional rejection information: with ReasonTimeout, that of the sender's device, by which
	// a receiver whose id the sender does not know finds the connection (IBTA 12.6.7.2, reason 4).
	GUID    uint64
	Private [REJPrivate]byte
}

// guidSize is the length of a GUID as additional rejection information.
const guidSize = 8

// Put writes the MAD.
func (m *REJ) Put(mad *[MADSize]byte, transaction uint64) {
	b := Header{transaction, AttrREJ}.put(mad)
	binary.BigEndian.PutUint32(b[0:], m.LocalID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteID)
	b[8] = m.About << 6
	binary.BigEndian.PutUint16(b[10:], uint16(m.Reason))
	if m.GUID != 0 {
		b[9] = guidSize << 1
		binary.BigEndian.PutUint64(b[12:], m.GUID)
	}
	copy(b[84:], m.Private[:])
}

// Parse reads a message that ParseHeader has returned.
func (m *REJ) Parse(b []byte) error {
	if len(b) < MADSize-madHeader {
		return ErrShort
	}
	m.LocalID, m.RemoteID = binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:])
	m.About = b[8] >> 6
	m.Reason = Reason(binary.BigEndian.Uint16(b[10:]))
	m.GUID = 0
	if b[9]>>1 >= guidSize {
		m.GUID = binary.BigEndian.Uint64(b[12:])
	}
	copy(m.Private[:], b[84:])
	return nil
}

// An MRA asks for more time (IBTA 12.6.6).
type MRA struct {
	LocalID, RemoteID uint32
	About             uint8
	ServiceTimeout    uint8 // 5 bits: 4.096 us * 2^n
}

// Put writes the MAD.
func (m *MRA) Put(mad *[MADSize]byte, transaction uint64) {
	b := Header{transaction, AttrMRA}.put(mad)
	binary.BigEndian.PutUint32(b[0:], m.LocalID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteID)
	b[8] = m.About << 6
	b[9] = m.ServiceTimeout << 3
}

// Parse reads a message that ParseHeader has returned.
func (m *MRA) Parse(b []byte) error {
	if len(b) < MADSize-madHeader {
		return ErrShort
	}
	m.LocalID, m.RemoteID = binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:])
	m.About, m.ServiceTimeout = b[8]>>6, b[9]>>3
	return nil
}

// An RTU completes the handshake (IBTA 12.6.9).
type RTU struct{ LocalID, RemoteID uint32 }

// Put writes the MAD.
func (m *RTU) Put(mad *[MADSize]byte, transaction uint64) {
	putIDs(Header{transaction, AttrRTU}.put(mad), m.LocalID, m.RemoteID)
}

// Parse reads a message that ParseHeader has returned.
func (m *RTU) Parse(b []byte) (err error) {
	m.LocalID, m.RemoteID, err = parseIDs(b)
	return err
}

// A DREQ asks to end a connection (IBTA 12.6.10).
type DREQ struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32 // the receiver's queue pair
}

// Put writes the MAD.
func (m *DREQ) Put(mad *[MADSize]byte, transaction uint64) {
	b := Header{transaction, AttrDREQ}.put(mad)
	putIDs(b, m.LocalID, m.RemoteID)
	binary.BigEndian.PutUint32(b[8:], m.RemoteQPN<<8)
}

// Parse reads a message that ParseHeader has returned.
func (m *DREQ) Parse(b []byte) (err error) {
	if m.LocalID, m.RemoteID, err = parseIDs(b); err == nil {
		m.RemoteQPN = binary.BigEndian.Uint32(b[8:]) >> 8
	}
	return err
}

// A DREP answers a DREQ (IBTA 12.6.11).
type DREP struct{ LocalID, RemoteID uint32 }

// Put writes the MAD.
func (m *DREP) Put(mad *[MADSize]byte, transaction uint64) {
	putIDs(Header{transaction, AttrDREP}.put(mad), m.LocalID, m.RemoteID)
}

// Parse reads a message that ParseHeader has returned.
func (m *DREP) Parse(b []byte) (err error) {
	m.LocalID, m.RemoteID, err = parseIDs(b)
	return err
}

func putIDs(b []byte, local, remote uint32) {
	binary.BigEndian.PutUint32(b[0:], local)
	binary.BigEndian.PutUint32(b[4:], remote)
}

func parseIDs(b []byte) (local, remote uint32, err error) {
	if len(b) < MADSize-madHeader {
		return 0, 0, ErrShort
	}
	return binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:]), nil
}
