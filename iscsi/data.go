package iscsi

import "encoding/binary"

// A DataOut carries write data (RFC 7143, 11.7).
type DataOut struct {
	Final      bool
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	ExpStatSN  StatSN
	DataSN     uint32
	Offset     uint32 // bytes
}

// Put writes the header.
func (p *DataOut) Put(bhs *[BHSSize]byte) {
	start(bhs, OpDataOut, false, bit(p.Final, flagFinal))
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 28, uint32(p.ExpStatSN))
	put32(bhs, 36, p.DataSN)
	put32(bhs, 40, p.Offset)
}

// Parse reads the header.
func (p *DataOut) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpDataOut, "Data-Out"); err != nil {
		return err
	}
	*p = DataOut{
		Final:      bhs[1]&flagFinal != 0,
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:        get32(bhs, 16),
		TTT:        get32(bhs, 20),
		ExpStatSN:  StatSN(get32(bhs, 28)),
		DataSN:     get32(bhs, 36),
		Offset:     get32(bhs, 40),
	}
	return nil
}

// A DataIn carries read data, and the status if HasStatus (RFC 7143, 11.7).
type DataIn struct {
	Final, Acknowledge, HasStatus bool
	Overflow, Underflow           bool
	Status                        uint8
	DataLength                    uint32
	LUN                           LUN
	ITT, TTT                      uint32
	StatSN                        StatSN
	ExpCmdSN                      CmdSN
	MaxCmdSN                      CmdSN
	DataSN                        uint32
	Offset                        uint32 // bytes
	Residual                      uint32
}

// Put writes the header. Status, residual and StatSN are reserved without HasStatus.
func (p *DataIn) Put(bhs *[BHSSize]byte) {
	start(bhs, OpDataIn, false, bit(p.Final, flagFinal)|bit(p.Acknowledge, flagAcknowledge))
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put32(bhs, 36, p.DataSN)
	put32(bhs, 40, p.Offset)
	if p.HasStatus {
		bhs[1] |= flagStatus | bit(p.Overflow, flagOverflow) | bit(p.Underflow, flagUnderflow)
		bhs[3] = p.Status
		put32(bhs, 24, uint32(p.StatSN))
		put32(bhs, 44, p.Residual)
	}
}

// Parse reads the header.
func (p *DataIn) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpDataIn, "Data-In"); err != nil {
		return err
	}
	*p = DataIn{
		Final:       bhs[1]&flagFinal != 0,
		Acknowledge: bhs[1]&flagAcknowledge != 0,
		HasStatus:   bhs[1]&flagStatus != 0,
		DataLength:  DataLengthOf(bhs),
		LUN:         LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:         get32(bhs, 16),
		TTT:         get32(bhs, 20),
		ExpCmdSN:    CmdSN(get32(bhs, 28)),
		MaxCmdSN:    CmdSN(get32(bhs, 32)),
		DataSN:      get32(bhs, 36),
		Offset:      get32(bhs, 40),
	}
	if p.HasStatus {
		p.Overflow = bhs[1]&flagOverflow != 0
		p.Underflow = bhs[1]&flagUnderflow != 0
		p.Status = bhs[3]
		p.StatSN = StatSN(get32(bhs, 24))
		p.Residual = get32(bhs, 44)
	}
	return nil
}

// An R2T asks for write data (RFC 7143, 11.8).
type R2T struct {
	LUN      LUN
	ITT, TTT uint32
	StatSN   StatSN
	ExpCmdSN CmdSN
	MaxCmdSN CmdSN
	R2TSN    uint32
	Offset   uint32 // bytes
	Length   uint32 // bytes
}

// Put writes the header.
func (p *R2T) Put(bhs *[BHSSize]byte) {
	start(bhs, OpR2T, false, flagFinal)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put32(bhs, 36, p.R2TSN)
	put32(bhs, 40, p.Offset)
	put32(bhs, 44, p.Length)
}

// Parse reads the header.
func (p *R2T) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpR2T, "R2T"); err != nil {
		return err
	}
	*p = R2T{
		LUN:      LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:      get32(bhs, 16),
		TTT:      get32(bhs, 20),
		StatSN:   StatSN(get32(bhs, 24)),
		ExpCmdSN: CmdSN(get32(bhs, 28)),
		MaxCmdSN: CmdSN(get32(bhs, 32)),
		R2TSN:    get32(bhs, 36),
		Offset:   get32(bhs, 40),
		Length:   get32(bhs, 44),
	}
	return nil
}
