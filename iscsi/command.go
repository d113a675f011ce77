package iscsi

import "encoding/binary"

// TaskAttr is a SCSI task attribute (RFC 7143, 11.3.1).
type TaskAttr uint8

// The task attributes.
const (
	AttrUntagged TaskAttr = iota
	AttrSimple
	AttrOrdered
	AttrHeadOfQueue
	AttrACA
)

// shiftPriority is where the priority lies in byte 2.
const shiftPriority = 4

// A SCSICommand carries a CDB (RFC 7143, 11.3). CDBs longer than 16 bytes continue in an AHS.
type SCSICommand struct {
	Immediate, Final, Read, Write bool
	Attr                          TaskAttr
	Priority                      uint8 // 0 (none) to 15, the least urgent (RFC 7144; SAM-5, 8.7)
	AHSLength                     uint8 // bytes/4, as on the wire
	DataLength                    uint32
	LUN                           LUN
	ITT                           uint32
	EDTL                          uint32
	CmdSN                         CmdSN
	ExpStatSN                     StatSN
	CDB                           [16]byte
}

// Put writes the header.
func (p *SCSICommand) Put(bhs *[BHSSize]byte) {
	start(bhs, OpSCSICommand, p.Immediate, bit(p.Final, flagFinal)|bit(p.Read, flagRead)|bit(p.Write, flagWrite)|byte(p.Attr)&maskAttr)
	bhs[2] = p.Priority << shiftPriority
	bhs[4] = p.AHSLength
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.EDTL)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
	copy(bhs[32:48], p.CDB[:])
}

// Parse reads the header.
func (p *SCSICommand) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpSCSICommand, "SCSI Command"); err != nil {
		return err
	}
	*p = SCSICommand{
		Immediate:  IsImmediate(bhs),
		Final:      bhs[1]&flagFinal != 0,
		Read:       bhs[1]&flagRead != 0,
		Write:      bhs[1]&flagWrite != 0,
		Attr:       TaskAttr(bhs[1] & maskAttr),
		Priority:   bhs[2] >> shiftPriority,
		AHSLength:  bhs[4],
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:        get32(bhs, 16),
		EDTL:       get32(bhs, 20),
		CmdSN:      CmdSN(get32(bhs, 24)),
		ExpStatSN:  StatSN(get32(bhs, 28)),
		CDB:        [16]byte(bhs[32:48]),
	}
	return nil
}

// A SCSIResponse ends a task (RFC 7143, 11.4). Sense, if any, is in the data segment behind a 2-byte
// length.
type SCSIResponse struct {
	Overflow, Underflow         bool
	BidiOverflow, BidiUnderflow bool
	Response                    uint8 // 0: completed at target, 1: target failure
	Status                      uint8 // SAM status
	DataLength                  uint32
	StatusQualifier             uint16 // RFC 7144; 0: none (SAM-5, 5.3.2)
	ITT                         uint32
	SNACKTag                    uint32
	StatSN                      StatSN
	ExpCmdSN                    CmdSN
	MaxCmdSN                    CmdSN
	ExpDataSN                   uint32
	BidiResidual                uint32
	Residual                    uint32
}

// Put writes the header.
func (p *SCSIResponse) Put(bhs *[BHSSize]byte) {
	start(bhs, OpSCSIResponse, false, flagFinal|bit(p.BidiOverflow, flagBidiOverflow)|bit(p.BidiUnderflow, flagBidiUnderflow)|
		bit(p.Overflow, flagOverflow)|bit(p.Underflow, flagUnderflow))
	bhs[2] = p.Response
	bhs[3] = p.Status
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint16(bhs[8:], p.StatusQualifier)
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.SNACKTag)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put32(bhs, 36, p.ExpDataSN)
	put32(bhs, 40, p.BidiResidual)
	put32(bhs, 44, p.Residual)
}

// Parse reads the header.
func (p *SCSIResponse) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpSCSIResponse, "SCSI Response"); err != nil {
		return err
	}
	*p = SCSIResponse{
		Overflow:        bhs[1]&flagOverflow != 0,
		Underflow:       bhs[1]&flagUnderflow != 0,
		BidiOverflow:    bhs[1]&flagBidiOverflow != 0,
		BidiUnderflow:   bhs[1]&flagBidiUnderflow != 0,
		Response:        bhs[2],
		Status:          bhs[3],
		DataLength:      DataLengthOf(bhs),
		StatusQualifier: binary.BigEndian.Uint16(bhs[8:]),
		ITT:             get32(bhs, 16),
		SNACKTag:        get32(bhs, 20),
		StatSN:          StatSN(get32(bhs, 24)),
		ExpCmdSN:        CmdSN(get32(bhs, 28)),
		MaxCmdSN:        CmdSN(get32(bhs, 32)),
		ExpDataSN:       get32(bhs, 36),
		BidiResidual:    get32(bhs, 40),
		Residual:        get32(bhs, 44),
	}
	return nil
}
