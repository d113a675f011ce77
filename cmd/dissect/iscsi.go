package dissect

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/scsi"
)

// iser is a message's iSER header and iSCSI PDU in words, "" for what is neither. b is all of the message or, if whole
// is false, its first packet.
func (d *Dissector) iser(f *frame, b []byte, whole bool) string {
	var h iser.Header
	rest, err := h.Parse(b)
	if err != nil || len(rest) < iscsi.BHSSize {
		return ""
	}
	bhs := (*[iscsi.BHSSize]byte)(rest)
	data := rest[iscsi.BHSSize:]
	skip := iscsi.AHSLengthOf(bhs)
	n := int(iscsi.DataLengthOf(bhs))
	if whole && skip+n > len(data) {
		return fmt.Sprintf("%v of %d bytes of data in a message of %d", iscsi.OpcodeOf(bhs), n, len(b))
	}
	data = data[min(skip, len(data)):]
	data = data[:min(n, len(data))]
	s := d.pdu(f, bhs, data)
	if n > 0 {
		s += fmt.Sprintf(", %d bytes inline", n)
	}
	if h.Flags&iser.WriteValid != 0 {
		s += fmt.Sprintf("; write key 0x%08x va 0x%016x", h.WriteSTag, h.WriteBase)
		remember(d.keys, keyID{f.src, h.WriteSTag}, iscsi.ITTOf(bhs))
	}
	if h.Flags&iser.ReadValid != 0 {
		s += fmt.Sprintf("; read key 0x%08x va 0x%016x", h.ReadSTag, h.ReadBase)
		remember(d.keys, keyID{f.src, h.ReadSTag}, iscsi.ITTOf(bhs))
	}
	return s
}

// pdu is a PDU in words: what RFC 7143, section 11 has of it that one looks for. data may be less than the header says.
func (d *Dissector) pdu(f *frame, bhs *[iscsi.BHSSize]byte, data []byte) string {
	op := iscsi.OpcodeOf(bhs)
	s := fmt.Sprintf("%v ITT 0x%x", op, iscsi.ITTOf(bhs))
	switch op {
	case iscsi.OpSCSICommand:
		var p iscsi.SCSICommand
		_ = p.Parse(bhs) // here and below: its only error is another opcode
		name := command(p.CDB[:])
		remember(d.tasks, taskID{f.src, f.dst, p.ITT}, name)
		return fmt.Sprintf("%s CmdSN %d LUN %v: %s, %d bytes", s, p.CmdSN, p.LUN, name, p.EDTL)
	case iscsi.OpSCSIResponse:
		var p iscsi.SCSIResponse
		_ = p.Parse(bhs)
		return s + d.response(f, &p, data)
	case iscsi.OpTMFRequest:
		var p iscsi.TMFRequest
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s: %v, LUN %v, of ITT 0x%x", s, p.Function, p.LUN, p.RefITT)
	case iscsi.OpTMFResponse:
		var p iscsi.TMFResponse
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s: %v", s, p.Response)
	case iscsi.OpLoginRequest, iscsi.OpTextRequest, iscsi.OpTextResponse:
		return s + text(data)
	case iscsi.OpLoginResponse:
		var p iscsi.LoginResponse
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s: %v%s", s, p.Status, text(data))
	case iscsi.OpDataOut:
		var p iscsi.DataOut
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s DataSN %d at %d", s, p.DataSN, p.Offset)
	case iscsi.OpReject:
		var p iscsi.Reject
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s: %v", s, p.Reason)
	case iscsi.OpAsync:
		var p iscsi.Async
		_ = p.Parse(bhs)
		return fmt.Sprintf("%s: event %d", s, p.Event)
	}
	return s
}

// response is how a task ended.
func (d *Dissector) response(f *frame, p *iscsi.SCSIResponse, data []byte) (s string) {
	task := taskID{f.dst, f.src, p.ITT}
	if name := d.tasks[task]; name != "" {
		s = " to " + name
	}
	delete(d.tasks, task)
	var sense []byte
	if len(data) >= 2 { // SenseLength, then the sense (RFC 7143, 11.4.7)
		sense = data[2:min(len(data), 2+int(binary.BigEndian.Uint16(data)))]
	}
	end := "GOOD"
	if err := (initiator.Result{Status: p.Status, Sense: sense}).Err(); err != nil {
		end = err.Error()
	}
	if p.Response != 0 {
		end = fmt.Sprintf("not completed, response %d", p.Response)
	}
	switch {
	case p.Underflow:
		end += fmt.Sprintf(", %d bytes less", p.Residual)
	case p.Overflow:
		end += fmt.Sprintf(", %d bytes too many", p.Residual)
	}
	return fmt.Sprintf("%s: %s", s, end)
}

// maxText bounds what is shown of keys, in bytes.
const maxText = 400

// text is a data segment of keys in one line. Who sent it may have put anything there.
func text(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	rest := ""
	if len(data) > maxText {
		data, rest = data[:maxText], " ..."
	}
	var b strings.Builder
	b.WriteString(" ")
	for _, c := range data {
		switch {
		case c == 0:
			b.WriteByte(' ')
		case c < 0x20 || c >= 0x7f:
			b.WriteByte('?')
		default:
			b.WriteByte(c)
		}
	}
	return strings.TrimRight(b.String(), " ") + rest
}

// command is a CDB in words: its name and, where it has them, its extent.
func command(cdb []byte) string {
	name := scsi.CommandName(cdb)
	if name == "" {
		return fmt.Sprintf("command 0x%02x", cdb[0])
	}
	be := binary.BigEndian
	switch cdb[0] {
	case 0x28, 0x2a, 0x2e, 0x2f, 0x34, 0x35, 0x41: // READ(10) and its like (SBC-3, 5)
		return fmt.Sprintf("%s LBA %d, %d blocks", name, be.Uint32(cdb[2:]), be.Uint16(cdb[7:]))
	case 0xa8, 0xaa, 0xae, 0xaf: // (12)
		return fmt.Sprintf("%s LBA %d, %d blocks", name, be.Uint32(cdb[2:]), be.Uint32(cdb[6:]))
	case 0x88, 0x8a, 0x8e, 0x8f, 0x90, 0x91, 0x93: // (16)
		return fmt.Sprintf("%s LBA %d, %d blocks", name, be.Uint64(cdb[2:]), be.Uint32(cdb[10:]))
	case 0x89: // COMPARE AND WRITE (SBC-3, 5.3)
		return fmt.Sprintf("%s LBA %d, %d blocks", name, be.Uint64(cdb[2:]), cdb[13])
	}
	return name
}
