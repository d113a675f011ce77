package iscsi

// A Stage is a stage of the login phase (RFC 7143, 11.12.3).
type Stage uint8

// The stages.
const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

// loginFlags makes byte 1 of a login PDU. NSG is reserved without T (RFC 7143, 11.12.3).
func loginFlags(transit, cont bool, current, next Stage) byte {
	b := bit(transit, flagFinal) | bit(cont, flagContinue) | byte(current)&3<<2
	if transit {
		b |= byte(next) & 3
	}
	return b
}

func nextStage(flags byte) Stage {
	if flags&flagFinal == 0 {
		return 0
	}
	return Stage(flags & 3)
}

// An ISID is the initiator's part of a session identifier (RFC 7143, 11.12.5).
type ISID [6]byte

// A LoginRequest is one step of a login from the initiator (RFC 7143, 11.12).
type LoginRequest struct {
	Transit, Continue      bool
	Current, Next          Stage
	VersionMax, VersionMin uint8
	DataLength             uint32
	ISID                   ISID
	TSIH                   uint16
	ITT                    uint32
	CID                    uint16
	CmdSN                  CmdSN
	ExpStatSN              StatSN
}

// Put writes the header.
func (p *LoginRequest) Put(bhs *[BHSSize]byte) {
	start(bhs, OpLoginRequest, true, loginFlags(p.Transit, p.Continue, p.Current, p.Next))
	bhs[2] = p.VersionMax
	bhs[3] = p.VersionMin
	SetDataLength(bhs, p.DataLength)
	copy(bhs[8:14], p.ISID[:])
	put16(bhs, 14, p.TSIH)
	put32(bhs, 16, p.ITT)
	put16(bhs, 20, p.CID)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
}

// Parse reads the header.
func (p *LoginRequest) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpLoginRequest, "Login Request"); err != nil {
		return err
	}
	*p = LoginRequest{
		Transit:    bhs[1]&flagFinal != 0,
		Continue:   bhs[1]&flagContinue != 0,
		Current:    Stage(bhs[1] >> 2 & 3),
		Next:       nextStage(bhs[1]),
		VersionMax: bhs[2],
		VersionMin: bhs[3],
		DataLength: DataLengthOf(bhs),
		ISID:       ISID(bhs[8:14]),
		TSIH:       get16(bhs, 14),
		ITT:        get32(bhs, 16),
		CID:        get16(bhs, 20),
		CmdSN:      CmdSN(get32(bhs, 24)),
		ExpStatSN:  StatSN(get32(bhs, 28)),
	}
	return nil
}

// A LoginResponse is one step of a login from the target (RFC 7143, 11.13).
type LoginResponse struct {
	Transit, Continue         bool
	Current, Next             Stage
	VersionMax, VersionActive uint8
	DataLength                uint32
	ISID                      ISID
	TSIH                      uint16
	ITT                       uint32
	StatSN                    StatSN
	ExpCmdSN                  CmdSN
	MaxCmdSN                  CmdSN
	Status                    LoginStatus
}

// Put writes the header.
func (p *LoginResponse) Put(bhs *[BHSSize]byte) {
	start(bhs, OpLoginResponse, false, loginFlags(p.Transit, p.Continue, p.Current, p.Next))
	bhs[2] = p.VersionMax
	bhs[3] = p.VersionActive
	SetDataLength(bhs, p.DataLength)
	copy(bhs[8:14], p.ISID[:])
	put16(bhs, 14, p.TSIH)
	put32(bhs, 16, p.ITT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put16(bhs, 36, uint16(p.Status))
}

// Parse reads the header.
func (p *LoginResponse) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpLoginResponse, "Login Response"); err != nil {
		return err
	}
	*p = LoginResponse{
		Transit:       bhs[1]&flagFinal != 0,
		Continue:      bhs[1]&flagContinue != 0,
		Current:       Stage(bhs[1] >> 2 & 3),
		Next:          nextStage(bhs[1]),
		VersionMax:    bhs[2],
		VersionActive: bhs[3],
		DataLength:    DataLengthOf(bhs),
		ISID:          ISID(bhs[8:14]),
		TSIH:          get16(bhs, 14),
		ITT:           get32(bhs, 16),
		StatSN:        StatSN(get32(bhs, 24)),
		ExpCmdSN:      CmdSN(get32(bhs, 28)),
		MaxCmdSN:      CmdSN(get32(bhs, 32)),
		Status:        LoginStatus(get16(bhs, 36)),
	}
	return nil
}
