package scsi

import (
	"encoding/binary"
	"encoding/hex"
)

const (
	// noUnitByte is byte 0 of INQUIRY data where no unit is: qualifier 3 (not capable of one), type 1Fh.
	noUnitByte = 0x7f
	// unavailableByte is byte 0 through a port group in the unavailable state: qualifier 1, type 0.
	unavailableByte = 0x20

	standardInquiryLen = 96

	tpgs             = 0x30 // target port groups: implicit and explicit asymmetric access
	thirdPartyCopies = 0x08 // 3PC: EXTENDED COPY
	vendorLen        = 8
	productLen       = 16
	revisionLen      = 4
)

// versionDescriptors are the standards that we follow (SPC-4, 6.6.2), no particular version
// of each claimed.
var versionDescriptors = [...]uint16{
	0x00a0, // SAM-5
	0x0460, // SPC-4
	0x04c0, // SBC-3
	0x0960, // iSCSI
}

func prepareInquiry(d *Device, t *Task) error {
	allocation := uint32(binary.BigEndian.Uint16(t.CDB[3:]))
	evpd, page := t.CDB[1]&1 != 0, t.CDB[2]
	if evpd {
		data := d.vpd(t, page)
		if data == nil {
			return invalidField(2, 7)
		}
		t.reply(data, allocation)
		return nil
	}
	if page != 0 {
		return invalidField(2, 7) // SPC-4, 6.6.1: only with EVPD
	}
	t.reply(d.standardInquiry(t.peripheral()), allocation)
	return nil
}

// peripheral is byte 0 of INQUIRY data and of VPD pages: PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE, which
// depend on the port's access state (SPC-4, 5.16.2.4.5).
func (t *Task) peripheral() byte {
	switch {
	case t.lu == nil:
		return noUnitByte
	case t.lu.access(t.Nexus.relativePort) == Unavailable:
		return unavailableByte
	}
	return 0
}

// standardInquiry makes standard INQUIRY data (SPC-4, 6.6.2).
func (d *Device) standardInquiry(peripheral byte) []byte {
	b := make([]byte, standardInquiryLen)
	b[0] = peripheral
	b[2] = 0x06                   // VERSION: SPC-4
	b[3] = 0x10 | 0x02            // HISUP, RESPONSE DATA FORMAT
	b[4] = standardInquiryLen - 5 // ADDITIONAL LENGTH
	b[5] = tpgs | thirdPartyCopies
	b[7] = 0x02 // CMDQUE
	putPadded(b[8:8+vendorLen], d.config.Vendor)
	putPadded(b[16:16+productLen], d.config.Product)
	putPadded(b[32:32+revisionLen], d.config.Revision)
	for i, v := range versionDescriptors {
		binary.BigEndian.PutUint16(b[58+2*i:], v)
	}
	return b
}

// putPadded fills b with s, cut or padded with spaces. ASCII data fields hold graphic codes only
// (SPC-4, 4.4.1).
func putPadded(b []byte, s string) {
	for i := range b {
		b[i] = ' '
		if i < len(s) && s[i] > ' ' && s[i] <= '~' {
			b[i] = s[i]
		}
	}
}

// serial is the unit serial number: 128 bits of the identity, in hexadecimal.
func (lu *LogicalUnit) serial() string { return hex.EncodeToString(lu.identity[:16]) }
