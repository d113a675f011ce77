package iscsi

import "encoding/binary"

// A NOPOut pings the target or answers its ping (RFC 7143, 11.18).
type NOPOut struct {
	Immediate  bool
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	CmdSN      CmdSN
	ExpStatSN  StatSN
}

// Put writes the header.
func (p *NOPOut) Put(bhs *[BHSSize]byte) {
	start(bhs, OpNOPOut, p.Immediate, flagFinal)
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
}

// Parse reads the header.
func (p *NOPOut) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpNOPOut, "NOP-Out"); err != nil {
		return err
	}
	*p = NOPOut{
		Immediate:  IsImmediate(bhs),
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:        get32(bhs, 16),
		TTT:        get32(bhs, 20),
		CmdSN:      CmdSN(get32(bhs, 24)),
		ExpStatSN:  StatSN(get32(bhs, 28)),
	}
	return nil
}

// A NOPIn answers a ping, is one, or only updates the window (RFC 7143, 11.19).
type NOPIn struct {
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	StatSN     StatSN
	ExpCmdSN   CmdSN
	MaxCmdSN   CmdSN
}

// Put writes the header.
func (p *NOPIn) Put(bhs *[BHSSize]byte) {
	start(bhs, OpNOPIn, false, flagFinal)
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
}

// Parse reads the header.
func (p *NOPIn) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpNOPIn, "NOP-In"); err != nil {
		return err
	}
	*p = NOPIn{
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:        get32(bhs, 16),
		TTT:        get32(bhs, 20),
		StatSN:     StatSN(get32(bhs, 24)),
		ExpCmdSN:   CmdSN(get32(bhs, 28)),
		MaxCmdSN:   CmdSN(get32(bhs, 32)),
	}
	return nil
}
