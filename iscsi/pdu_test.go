package iscsi

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type message interface {
	Put(bhs *[BHSSize]byte)
	Parse(bhs *[BHSSize]byte) error
}

const testLUN = LUN(0x4142434445464748)

// headers has one value of every type, every field set, with its bytes as RFC 7143, 11 lays them out.
var headers = []struct {
	op    Opcode
	value message
	words string // 12 words of the header
}{
	{
		OpNOPOut,
		&NOPOut{Immediate: true, DataLength: 0x010203, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, CmdSN: 0x31323334, ExpStatSN: 0x41424344},
		"40800000 00010203 41424344 45464748 11121314 21222324 31323334 41424344 00000000 00000000 00000000 00000000",
	},
	{
		OpSCSICommand,
		&SCSICommand{
			Immediate: true, Final: true, Read: true, Write: true, Attr: AttrACA, Priority: 0xb, AHSLength: 5, DataLength: 0x010203, LUN: testLUN,
			ITT: 0x11121314, EDTL: 0x21222324, CmdSN: 0x31323334, ExpStatSN: 0x41424344, CDB: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		},
		"41e4b000 05010203 41424344 45464748 11121314 21222324 31323334 41424344 01020304 05060708 090a0b0c 0d0e0f10",
	},
	{
		OpTMFRequest,
		&TMFRequest{
			Immediate: true, Function: TMLogicalUnitReset, LUN: testLUN, ITT: 0x11121314, RefITT: 0x21222324, CmdSN: 0x31323334,
			ExpStatSN: 0x41424344, RefCmdSN: 0x51525354, ExpDataSN: 0x61626364,
		},
		"42850000 00000000 41424344 45464748 11121314 21222324 31323334 41424344 51525354 61626364 00000000 00000000",
	},
	{
		OpLoginRequest,
		&LoginRequest{
			Transit: true, Continue: true, Current: StageOperational, Next: StageFullFeature, VersionMax: 2, VersionMin: 1, DataLength: 0x010203,
			ISID: ISID{1, 2, 3, 4, 5, 6}, TSIH: 0x0708, ITT: 0x11121314, CID: 0x2122, CmdSN: 0x31323334, ExpStatSN: 0x41424344,
		},
		"43c70201 00010203 01020304 05060708 11121314 21220000 31323334 41424344 00000000 00000000 00000000 00000000",
	},
	{
		OpTextRequest,
		&TextRequest{Immediate: true, Final: true, Continue: true, DataLength: 0x010203, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, CmdSN: 0x31323334, ExpStatSN: 0x41424344},
		"44c00000 00010203 41424344 45464748 11121314 21222324 31323334 41424344 00000000 00000000 00000000 00000000",
	},
	{
		OpDataOut,
		&DataOut{Final: true, DataLength: 0x010203, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, ExpStatSN: 0x41424344, DataSN: 0x51525354, Offset: 0x61626364},
		"05800000 00010203 41424344 45464748 11121314 21222324 00000000 41424344 00000000 51525354 61626364 00000000",
	},
	{
		OpLogoutReq,
		&LogoutRequest{Immediate: true, Reason: LogoutRecovery, ITT: 0x11121314, CID: 0x2122, CmdSN: 0x31323334, ExpStatSN: 0x41424344},
		"46820000 00000000 00000000 00000000 11121314 21220000 31323334 41424344 00000000 00000000 00000000 00000000",
	},
	{
		OpSNACK,
		&SNACK{Type: 3, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, ExpStatSN: 0x41424344, BegRun: 0x51525354, RunLength: 0x61626364},
		"10830000 00000000 41424344 45464748 11121314 21222324 00000000 41424344 00000000 00000000 51525354 61626364",
	},
	{
		OpNOPIn,
		&NOPIn{DataLength: 0x010203, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354},
		"20800000 00010203 41424344 45464748 11121314 21222324 31323334 41424344 51525354 00000000 00000000 00000000",
	},
	{
		OpSCSIResponse,
		&SCSIResponse{
			Overflow: true, Underflow: true, BidiOverflow: true, BidiUnderflow: true, Response: 1, Status: 2, DataLength: 0x010203,
			StatusQualifier: 0x0506, ITT: 0x11121314, SNACKTag: 0x21222324, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, ExpDataSN: 0x61626364,
			BidiResidual: 0x71727374, Residual: 0x81828384,
		},
		"219e0102 00010203 05060000 00000000 11121314 21222324 31323334 41424344 51525354 61626364 71727374 81828384",
	},
	{
		OpTMFResponse,
		&TMFResponse{Response: TMRejected, Info: [3]byte{1, 2, 3}, ITT: 0x11121314, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354},
		"2280ff00 00000000 01020300 00000000 11121314 00000000 31323334 41424344 51525354 00000000 00000000 00000000",
	},
	{
		OpLoginResponse,
		&LoginResponse{
			Transit: true, Continue: true, Current: StageOperational, Next: StageFullFeature, VersionMax: 2, VersionActive: 1, DataLength: 0x010203,
			ISID: ISID{1, 2, 3, 4, 5, 6}, TSIH: 0x0708, ITT: 0x11121314, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, Status: LoginNotFound,
		},
		"23c70201 00010203 01020304 05060708 11121314 00000000 31323334 41424344 51525354 02030000 00000000 00000000",
	},
	{
		OpTextResponse,
		&TextResponse{Final: true, Continue: true, DataLength: 0x010203, LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354},
		"24c00000 00010203 41424344 45464748 11121314 21222324 31323334 41424344 51525354 00000000 00000000 00000000",
	},
	{
		OpDataIn,
		&DataIn{
			Final: true, Acknowledge: true, HasStatus: true, Overflow: true, Underflow: true, Status: 2, DataLength: 0x010203, LUN: testLUN,
			ITT: 0x11121314, TTT: 0x21222324, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, DataSN: 0x61626364, Offset: 0x71727374, Residual: 0x81828384,
		},
		"25c70002 00010203 41424344 45464748 11121314 21222324 31323334 41424344 51525354 61626364 71727374 81828384",
	},
	{
		OpLogoutResp,
		&LogoutResponse{Response: 3, ITT: 0x11121314, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, Time2Wait: 0x6162, Time2Retain: 0x7172},
		"26800300 00000000 00000000 00000000 11121314 00000000 31323334 41424344 51525354 00000000 61627172 00000000",
	},
	{
		OpR2T,
		&R2T{LUN: testLUN, ITT: 0x11121314, TTT: 0x21222324, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, R2TSN: 0x61626364, Offset: 0x71727374, Length: 0x81828384},
		"31800000 00000000 41424344 45464748 11121314 21222324 31323334 41424344 51525354 61626364 71727374 81828384",
	},
	{
		OpAsync,
		&Async{
			DataLength: 0x010203, LUN: testLUN, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, Event: AsyncVendor, VCode: 0x61,
			Parameter1: 0x6263, Parameter2: 0x6465, Parameter3: 0x6667,
		},
		"32800000 00010203 41424344 45464748 ffffffff 00000000 31323334 41424344 51525354 ff616263 64656667 00000000",
	},
	{
		OpReject,
		&Reject{Reason: RejectInvalidField, DataLength: 0x010203, StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354, DataSN: 0x61626364},
		"3f800900 00010203 00000000 00000000 ffffffff 00000000 31323334 41424344 51525354 61626364 00000000 00000000",
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

func newOf(m message) message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message) }

func TestHeadersStandAsInTheRFC(t *testing.T) {
	for _, h := range headers {
		t.Run(h.op.String(), func(t *testing.T) {
			want := [BHSSize]byte(unhex(t, h.words))
			got := [BHSSize]byte(bytes.Repeat([]byte{0xa5}, BHSSize)) // Put writes every byte
			h.value.Put(&got)
			assert.Equal(t, hex.Dump(want[:]), hex.Dump(got[:]))
			parsed := newOf(h.value)
			require.NoError(t, parsed.Parse(&want))
			assert.Equal(t, h.value, parsed)
			assert.Equal(t, h.op, OpcodeOf(&want))
		})
	}
}

func TestParseRefusesEveryOtherOpcode(t *testing.T) {
	for _, h := range headers {
		for op := range 64 {
			bhs := [BHSSize]byte{byte(op) | flagImmediate}
			err := newOf(h.value).Parse(&bhs)
			if Opcode(op) == h.op {
				assert.NoError(t, err, "%T", h.value)
				continue
			}
			var wire *WireError
			require.ErrorAs(t, err, &wire, "%T from opcode %#x", h.value, op)
			assert.ErrorIs(t, err, ErrReserved)
		}
	}
}

func TestReservedBitsAreIgnored(t *testing.T) {
	for _, h := range headers {
		bhs := [BHSSize]byte(bytes.Repeat([]byte{0xff}, BHSSize))
		bhs[0] = byte(h.op) | 0xc0
		checkStable(t, &bhs, newOf(h.value))
	}
}

func TestReservedFieldsDependOnFlags(t *testing.T) {
	var bhs [BHSSize]byte
	(&DataIn{Final: true, Status: 2, StatSN: 7, Residual: 9, Underflow: true}).Put(&bhs)
	assert.Zero(t, bhs[1]&^flagFinal, "no status flags without S")
	assert.Zero(t, bhs[3])
	assert.Zero(t, get32(&bhs, 24)|get32(&bhs, 44))
	(&LoginRequest{Current: StageOperational, Next: StageFullFeature}).Put(&bhs)
	assert.Equal(t, byte(0x04), bhs[1], "NSG is reserved without T")
}

// checkStable is the property of the fuzz target: parse, put, parse gives the same.
func checkStable(t *testing.T, bhs *[BHSSize]byte, first message) {
	t.Helper()
	require.NoError(t, first.Parse(bhs))
	var again [BHSSize]byte
	first.Put(&again)
	second := newOf(first)
	require.NoError(t, second.Parse(&again))
	require.Equal(t, first, second)
}

func FuzzPDU(f *testing.F) {
	for _, h := range headers {
		var bhs [BHSSize]byte
		h.value.Put(&bhs)
		f.Add(bhs[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var bhs [BHSSize]byte
		copy(bhs[:], b)
		for _, h := range headers {
			if h.op == OpcodeOf(&bhs) {
				checkStable(t, &bhs, newOf(h.value))
			} else {
				require.Error(t, newOf(h.value).Parse(&bhs))
			}
		}
		_, _ = OpcodeOf(&bhs).String(), IsImmediate(&bhs)
		require.LessOrEqual(t, DataLengthOf(&bhs), uint32(maxDataLength))
		require.LessOrEqual(t, AHSLengthOf(&bhs), MaxAHS)
	})
}

func TestAccessorsReadAndChangeOneField(t *testing.T) {
	bhs := [BHSSize]byte(unhex(t, headers[1].words))
	assert.True(t, IsImmediate(&bhs))
	assert.True(t, IsFinal(&bhs))
	assert.Equal(t, uint32(0x010203), DataLengthOf(&bhs))
	assert.Equal(t, 20, AHSLengthOf(&bhs))
	assert.Equal(t, uint32(0x11121314), ITTOf(&bhs))
	before := bhs
	SetDataLength(&bhs, 0xfffefd)
	assert.Equal(t, uint32(0xfffefd), DataLengthOf(&bhs))
	SetFinal(&bhs, false)
	assert.False(t, IsFinal(&bhs))
	SetDataLength(&bhs, 0x010203)
	SetFinal(&bhs, true)
	assert.Equal(t, before, bhs)
	assert.Panics(t, func() { SetDataLength(&bhs, 1<<24) })
	assert.Equal(t, "opcode 0x1c", Opcode(0x1c).String())
}

func TestPad4(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 4, 3: 4, 4: 4, 5: 8, 1<<24 - 1: 1 << 24} {
		assert.Equal(t, want, Pad4(n), "%d", n)
	}
}

func TestCodecDoesNotAllocate(t *testing.T) {
	var bhs [BHSSize]byte
	cmd, rsp, in := SCSICommand{ITT: 1}, SCSIResponse{ITT: 1}, DataIn{ITT: 1, HasStatus: true}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		cmd.Put(&bhs)
		_ = cmd.Parse(&bhs)
		rsp.Put(&bhs)
		_ = rsp.Parse(&bhs)
		in.Put(&bhs)
		_ = in.Parse(&bhs)
	}))
}

func BenchmarkCodec(b *testing.B) {
	for _, i := range []int{1, 9, 13} { // SCSI Command, SCSI Response, Data-In
		m := headers[i].value
		var bhs [BHSSize]byte
		m.Put(&bhs)
		b.Run("Put/"+headers[i].op.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(BHSSize)
			for b.Loop() {
				m.Put(&bhs)
			}
		})
		b.Run("Parse/"+headers[i].op.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(BHSSize)
			m := newOf(m)
			for b.Loop() {
				_ = m.Parse(&bhs)
			}
		})
	}
}
