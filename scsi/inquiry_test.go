package scsi

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// golden reads a page written down as lines of "hex bytes  field name".
func golden(t testing.TB, page string) []byte {
	t.Helper()
	var b []byte
	for line := range strings.Lines(page) {
		digits, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		field, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		require.NoError(t, err, line)
		b = append(b, field...)
	}
	return b
}

// zeros is n bytes in hexadecimal.
func zeros(n int) string { return strings.Repeat("00", n) }

func inquiry(b *bench, lun uint64, flags, page byte) *result {
	return b.run(lun, []byte{0x12, flags, page, 0x01, 0x00, 0}, 256, nil)
}

func TestStandardInquiry(t *testing.T) {
	b := newBench(t, newMemory(4096))
	want := golden(t, `
		00  PERIPHERAL QUALIFIER, PERIPHERAL DEVICE TYPE: direct access block device
		00  RMB
		06  VERSION: SPC-4
		12  HISUP, RESPONSE DATA FORMAT
		5b  ADDITIONAL LENGTH
		38 00 02  TPGS: implicit and explicit, 3PC; CMDQUE
		474f4953 45522020  T10 VENDOR IDENTIFICATION
		676f6973 65722064 69736b20 20202020  PRODUCT IDENTIFICATION
		31202020  PRODUCT REVISION LEVEL
		`+zeros(20)+`  vendor specific
		00 00  CLOCKING, QAS, IUS; reserved
		00a0 0460 04c0 0960 0000 0000 0000 0000  VERSION DESCRIPTORs: SAM-5 SPC-4 SBC-3 iSCSI
		`+zeros(22)+`  reserved`)
	r := inquiry(b, 0, 0, 0)
	assert.Equal(t, Good, r.Status)
	assert.Equal(t, want, r.data)
	assert.Equal(t, "5/24/00", inquiry(b, 0, 0, 0x80).sense(), "a page without EVPD")
	assert.Equal(t, "5/24/00", inquiry(b, 0, 2, 0).sense(), "CMDDT")
}

func TestInquiryNamesAreCutAndMadeGraphic(t *testing.T) {
	d := NewDevice(DeviceConfig{Vendor: "MUCHTOOLONG", Product: "a\nb", Revision: "12345"})
	_, err := d.Add(0, newMemory(512), LUConfig{ID: "x"})
	require.NoError(t, err)
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
	assert.Equal(t, "MUCHTOOLa b             1234", string(inquiry(b, 0, 0, 0).data[8:36]))
}

func TestVitalProductData(t *testing.T) {
	m := newMemory(1 << 20)
	m.info.BlockSize = 4096
	b := newBench(t, m)
	// The identity is SHA-256 of "unit 0": c0d0ba95dbdfa166 28eb0fb58eb3f7ab ...
	serial := hex.EncodeToString([]byte("c0d0ba95dbdfa16628eb0fb58eb3f7ab"))
	for page, want := range map[byte]string{
		0x00: `00 00 0008  header
			00 80 83 86 8f b0 b1 b2  supported pages`,
		0x80: `00 80 0020  header
			` + serial + `  PRODUCT SERIAL NUMBER`,
		0x83: `00 83 0080  header
			02 01 00 28  ASCII, logical unit, T10 vendor ID
			474f4953 45522020 ` + serial + `  GOISER, serial number
			01 03 00 08  binary, logical unit, NAA
			30d0ba95dbdfa166  locally assigned
			51 94 00 04  iSCSI, binary, PIV, port, relative target port
			0000 0001  RELATIVE TARGET PORT IDENTIFIER
			51 95 00 04  iSCSI, binary, PIV, port, target port group
			0000 0001  TARGET PORT GROUP
			53 98 00 1c  iSCSI, UTF-8, PIV, port, SCSI name string
			69716e2e 32303236 2d30312e 74657374 3a782c74 2c307830 30303100  iqn.2026-01.test:x,t,0x0001
			53 a8 00 14  iSCSI, UTF-8, PIV, device, SCSI name string
			69716e2e 32303236 2d30312e 74657374 3a780000  iqn.2026-01.test:x`,
		0x86: `00 86 003c  header
			00 07 00  no protection information; HEADSUP, ORDSUP, SIMPSUP; no volatile cache
			` + zeros(57) + `  nothing else`,
		0xb0: `00 b0 003c  header
			00 40  WSNZ; MAXIMUM COMPARE AND WRITE LENGTH
			0008  OPTIMAL TRANSFER LENGTH GRANULARITY
			00000080  MAXIMUM TRANSFER LENGTH
			00000000  OPTIMAL TRANSFER LENGTH
			` + zeros(20) + `  nothing of prefetch and UNMAP
			0000000000008000  MAXIMUM WRITE SAME LENGTH
			` + zeros(20) + `  nothing of WRITE ATOMIC`,
		0xb1: `00 b1 003c  header
			0001  MEDIUM ROTATION RATE: non-rotating
			00 00 01  WABEREQ, WACEREQ, form factor; VBULS
			` + zeros(55) + `  nothing else`,
		0xb2: `00 b2 0004  header
			00 00 00 00  THRESHOLD EXPONENT, LBPU, PROVISIONING TYPE`,
	} {
		r := inquiry(b, 0, 1, page)
		assert.Equal(t, Good, r.Status, "page %02x", page)
		assert.Equal(t, golden(t, want), r.data, "page %02x", page)
	}
	for page := range 256 {
		if !strings.Contains(string(vpdPages[:]), string([]byte{byte(page)})) {
			assert.Equal(t, "5/24/00", inquiry(b, 0, 1, byte(page)).sense(), "page %02x", page)
		}
	}
}

func TestRotatingMedium(t *testing.T) {
	m := newMemory(4096)
	m.info.Rotational = true
	require.Equal(t, []byte{0, 0}, inquiry(newBench(t, m), 0, 1, 0xb1).data[4:6], "MEDIUM ROTATION RATE is not reported")
}

func TestIdentityFollowsID(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	for i, id := range []string{"a", "b", "a"} {
		_, err := d.Add(i, newMemory(512), LUConfig{ID: id})
		require.NoError(t, err)
	}
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
	page := func(n int, p byte) []byte { return inquiry(b, lunAt(n), 1, p).data }
	for _, p := range []byte{0x80, 0x83} {
		assert.Equal(t, page(0, p), page(2, p))
		assert.NotEqual(t, page(0, p), page(1, p))
	}
}

func TestReadCapacity(t *testing.T) {
	m := newMemory(4096 + 511) // a tail that is no block
	m.info.BlockSize = 4096
	b := newBench(t, m)
	assert.Equal(t, []byte{0, 0, 0, 7, 0, 0, 2, 0}, b.run(0, cdb10(0x25, 0, 0, 0), 8, nil).data)
	want := golden(t, `00000000 00000007  RETURNED LOGICAL BLOCK ADDRESS
		00000200  LOGICAL BLOCK LENGTH IN BYTES
		00 03  PROT_EN; LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT
		00 00  LBPME LBPRZ, LOWEST ALIGNED
		`+zeros(16))
	capacity16 := cdb16(0x9e, 0x10, 0, 32)
	assert.Equal(t, want, b.run(0, capacity16, 32, nil).data)
	assert.Equal(t, "5/24/00", b.run(0, cdb16(0x9e, 0x11, 0, 32), 32, nil).sense(), "unknown service action")

	m.info.SizeBytes = 3 << 40
	require.NoError(t, b.lu.CapacityChanged())
	assert.Equal(t, "6/2a/09", b.run(0, capacity16, 32, nil).sense())
	assert.Equal(t, []byte{255, 255, 255, 255, 0, 0, 2, 0}, b.run(0, cdb10(0x25, 0, 0, 0), 8, nil).data)
	assert.EqualValues(t, 3<<31-1, binary.BigEndian.Uint64(b.run(0, capacity16, 32, nil).data))
	m.info.SizeBytes = 511
	assert.Error(t, b.lu.CapacityChanged())
	assert.EqualValues(t, 3<<31, b.lu.Blocks())
}

const (
	recoveryPage   = "01 0a " + "00000000000000000000" + "  Read-Write Error Recovery\n"
	cachingPage    = "08 12 04" + "0000000000000000000000000000000000" + "  Caching, WCE\n"
	controlPage    = "0a 0a 00 10 00000000 ffff 0000  Control, QUEUE ALGORITHM MODIFIER 1, BUSY TIMEOUT PERIOD\n"
	exceptionsPage = "1c 0a 08 00 0000000000000000  Informational Exceptions Control, DEXCPT\n"
	shortBlocks    = "00000008 00 000200  NUMBER OF LOGICAL BLOCKS, LOGICAL BLOCK LENGTH\n"
	longBlocks     = "0000000000000008 00000000 00000200  NUMBER OF LOGICAL BLOCKS, LOGICAL BLOCK LENGTH\n"
)

func TestModeSense(t *testing.T) {
	m := newMemory(4096)
	m.info.WriteCache = true
	b := newBench(t, m)
	sense6 := func(flags, page, subpage byte) []byte { return []byte{0x1a, flags, page, subpage, 255, 0} }
	sense10 := func(flags, page, subpage byte) []byte { return []byte{0x5a, flags, page, subpage, 0, 0, 0, 1, 0, 0} }
	for _, c := range []struct {
		name string
		cdb  []byte
		want string
	}{
		{"6: all", sense6(0, 0x3f, 0), "43 00 10 08  header: MODE DATA LENGTH, DPOFUA, BLOCK DESCRIPTOR LENGTH\n" +
			shortBlocks + recoveryPage + cachingPage + controlPage + exceptionsPage},
		{"6: all, DBD", sense6(8, 0x3f, 0xff), "3b 00 10 00\n" + recoveryPage + cachingPage + controlPage + exceptionsPage},
		{"6: caching", sense6(0, 0x08, 0), "1f 00 10 08\n" + shortBlocks + cachingPage},
		{"6: caching, default", sense6(8, 0x88, 0), "17 00 10 00\n" + cachingPage},
		{"6: caching, changeable", sense6(8, 0x48, 0), "17 00 10 00\n08 12" + zeros(18)},
		{"6: control, changeable", sense6(8, 0x4a, 0), "0f 00 10 00\n0a 0a 04 00 08 00 0000 0000 0000  D_SENSE, SWP"},
		{"10: control", sense10(0, 0x0a, 0), "001a 00 10 00 00 0008\n" + shortBlocks + controlPage},
		{"10: control, LLBAA", sense10(0x10, 0x0a, 0), "0022 00 10 01 00 0010  header with LONGLBA\n" + longBlocks + controlPage},
		{"10: exceptions, DBD", sense10(0x18, 0x1c, 0), "0012 00 10 00 00 0000\n" + exceptionsPage},
	} {
		r := b.run(0, c.cdb, 256, nil)
		assert.Equal(t, golden(t, c.want), r.data, c.name)
		assertResidual(t, len(r.data)-256, r)
	}
	assert.Equal(t, "5/39/00", b.run(0, sense6(0, 0xff, 0), 255, nil).sense(), "saved values")
	assert.Equal(t, "5/24/00", b.run(0, sense6(0, 0x02, 0), 255, nil).sense(), "unknown page")
	assert.Equal(t, "5/24/00", b.run(0, sense6(0, 0x0a, 1), 255, nil).sense(), "unknown subpage")

	m.info.WriteCache = false
	b = newBench(t, m)
	assert.Zero(t, b.run(0, sense6(8, 0x08, 0), 255, nil).data[6], "WCE of a store without cache")
}

// RS-04: cutting does not change the counts inside, EDTL left over is an underflow, and there is no
// overflow whatever EDTL is.
func TestAllocationLengths(t *testing.T) {
	b := newBench(t, newMemory(1<<20))
	for n := 1; n < 4; n++ {
		_, err := b.d.Add(n, newMemory(512), LUConfig{ID: "x"})
		require.NoError(t, err)
	}
	b.run(0, make([]byte, 6), 0, nil) // REPORTED LUNS DATA HAS CHANGED
	for _, c := range []struct {
		name string
		cdb  func(n byte) []byte
	}{
		{"INQUIRY", func(n byte) []byte { return []byte{0x12, 0, 0, 0, n, 0} }},
		{"INQUIRY VPD", func(n byte) []byte { return []byte{0x12, 1, 0x83, 0, n, 0} }},
		{"REQUEST SENSE", func(n byte) []byte { return []byte{0x03, 0, 0, 0, n, 0} }},
		{"MODE SENSE(6)", func(n byte) []byte { return []byte{0x1a, 0, 0x3f, 0, n, 0} }},
		{"MODE SENSE(10)", func(n byte) []byte { return []byte{0x5a, 0, 0x3f, 0, 0, 0, 0, 0, n, 0} }},
		{"REPORT LUNS", func(n byte) []byte { return []byte{0xa0, 0, 0, 0, 0, 0, 0, 0, 0, n, 0, 0} }},
		{"READ CAPACITY(16)", func(n byte) []byte { return cdb16(0x9e, 0x10, 0, uint32(n)) }},
		{"REPORT SUPPORTED OPERATION CODES", func(n byte) []byte { return []byte{0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, n, 0, 0} }},
		{"REPORT SUPPORTED TMFs", func(n byte) []byte { return []byte{0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, n, 0, 0} }},
	} {
		full := b.run(0, c.cdb(255), 255, nil).data
		require.NotEmpty(t, full, c.name)
		for _, allocation := range []int{0, 1, 4, 8, 12, 16, 35, 254} {
			sent := min(allocation, len(full))
			for _, edtl := range []int{0, 1, 7, allocation, allocation + 100} {
				r := b.run(0, c.cdb(byte(allocation)), edtl, nil)
				require.Equal(t, Good, r.Status, c.name)
				want := min(sent, edtl)
				assert.Equal(t, string(full[:want]), string(r.data), "%s allocation %d EDTL %d", c.name, allocation, edtl)
				assertResidual(t, want-edtl, r)
			}
		}
	}
}
