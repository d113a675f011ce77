package iscsi

import "encoding/binary"

// A SNACK asks for lost PDUs or acknowledges data (RFC 7143, 11.16). We parse it to reject it.
type SNACK struct {
	Type      uint8
	LUN       LUN
	ITT, TTT  uint32
	ExpStatSN StatSN
	BegRun    uint32
	RunLength uint32
}

// Put writes the header.
func (p *SNACK) Put(bhs *[BHSSize]byte) {
	start(bhs, OpSNACK, false, flagFinal|p.Type&0x0f)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.TTT)
	put32(bhs, 28, uint32(p.ExpStatSN))
	put32(bhs, 40, p.BegRun)
	put32(bhs, 44, p.RunLength)
}

// Parse reads the header.
func (p *SNACK) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpSNACK, "SNACK Request"); err != nil {
		return err
	}
	*p = SNACK{
		Type:      bhs[1] & 0x0f,
		LUN:       LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:       get32(bhs, 16),
		TTT:       get32(bhs, 20),
		ExpStatSN: StatSN(get32(bhs, 28)),
		BegRun:    get32(bhs, 40),
		RunLength: get32(bhs, 44),
	}
	return nil
}
