package iscsi

import "encoding/binary"

// A TextRequest carries keys in full-feature phase (RFC 7143, 11.10).
type TextRequest struct {
	Immediate, Final, Continue bool
	DataLength                 uint32
	LUN                        LUN
	ITT, TTT                   uint32
	CmdSN                      CmdSN
	ExpStatSN                  StatSN
}

// Put writes the header.
func (p *TextRequest) Put(bhs *[BHSSize]byte) {
	start(bhs, OpTextRequest, p.Immediate, bit(p.Final, flagFinal)|bit(p.Continue, flagContinue))
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
}

// Parse reads the header.
func (p *TextRequest) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpTextRequest, "Text Request"); err != nil {
		return err
	}
	*p = TextRequest{
		Immediate:  IsImmediate(bhs),
		Final:      bhs[1]&flagFinal != 0,
		Continue:   bhs[1]&flagContinue != 0,
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:        get32(bhs, 16),
		TTT:        get32(bhs, 20),
		CmdSN:      CmdSN(get32(bhs, 24)),
		ExpStatSN:  StatSN(get32(bhs, 28)),
	}
	return nil
}

// A TextResponse answers a TextRequest (RFC 7143, 11.11).
type TextResponse struct {
	Final, Continue bool
	DataLength      uint32
	LUN             LUN
	ITT, TTT        uint32
	StatSN          StatSN
	ExpCmdSN        CmdSN
	MaxCmdSN        CmdSN
}

// Put writes the header.
func (p *TextResponse) Put(bhs *[BHSSize]byte) {
	start(bhs, OpTextResponse, false, bit(p.Final, flagFinal)|bit(p.Continue, flagContinue))
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
}

// Parse reads the header.
func (p *TextResponse) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpTextResponse, "Text Response"); err != nil {
		return err
	}
	*p = TextResponse{
		Final:      bhs[1]&flagFinal != 0,
		Continue:   bhs[1]&flagContinue != 0,
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
