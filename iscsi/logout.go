package iscsi

// LogoutReason says what a LogoutRequest ends (RFC 7143, 11.14.1).
type LogoutReason uint8

// The logout reasons.
const (
	LogoutSession    LogoutReason = 0
	LogoutConnection LogoutReason = 1
	LogoutRecovery   LogoutReason = 2
)

// A LogoutRequest ends a session or a connection (RFC 7143, 11.14).
type LogoutRequest struct {
	Immediate bool
	Reason    LogoutReason
	ITT       uint32
	CID       uint16
	CmdSN     CmdSN
	ExpStatSN StatSN
}

// Put writes the header.
func (p *LogoutRequest) Put(bhs *[BHSSize]byte) {
	start(bhs, OpLogoutReq, p.Immediate, flagFinal|byte(p.Reason)&0x7f)
	put32(bhs, 16, p.ITT)
	put16(bhs, 20, p.CID)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
}

// Parse reads the header.
func (p *LogoutRequest) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpLogoutReq, "Logout Request"); err != nil {
		return err
	}
	*p = LogoutRequest{
		Immediate: IsImmediate(bhs),
		Reason:    LogoutReason(bhs[1] & 0x7f),
		ITT:       get32(bhs, 16),
		CID:       get16(bhs, 20),
		CmdSN:     CmdSN(get32(bhs, 24)),
		ExpStatSN: StatSN(get32(bhs, 28)),
	}
	return nil
}

// A LogoutResponse answers a LogoutRequest (RFC 7143, 11.15).
type LogoutResponse struct {
	Response    uint8 // 0 closed, 1 no such CID, 2 recovery not supported, 3 cleanup failed
	ITT         uint32
	StatSN      StatSN
	ExpCmdSN    CmdSN
	MaxCmdSN    CmdSN
	Time2Wait   uint16 // seconds
	Time2Retain uint16 // seconds
}

// Put writes the header.
func (p *LogoutResponse) Put(bhs *[BHSSize]byte) {
	start(bhs, OpLogoutResp, false, flagFinal)
	bhs[2] = p.Response
	put32(bhs, 16, p.ITT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put16(bhs, 40, p.Time2Wait)
	put16(bhs, 42, p.Time2Retain)
}

// Parse reads the header.
func (p *LogoutResponse) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpLogoutResp, "Logout Response"); err != nil {
		return err
	}
	*p = LogoutResponse{
		Response:    bhs[2],
		ITT:         get32(bhs, 16),
		StatSN:      StatSN(get32(bhs, 24)),
		ExpCmdSN:    CmdSN(get32(bhs, 28)),
		MaxCmdSN:    CmdSN(get32(bhs, 32)),
		Time2Wait:   get16(bhs, 40),
		Time2Retain: get16(bhs, 42),
	}
	return nil
}
