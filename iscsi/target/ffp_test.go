package target

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// alive proves that the session still works.
func (c *client) alive() {
	c.t.Helper()
	itt := c.command(iscsi.SCSICommand{Final: true}, make([]byte, 16), nil)
	r, _ := c.response(itt)
	require.Zero(c.t, r.Status)
}

// checkCondition is the next response, which must have this sense, given as 0xKKAAQQ.
func (c *client) checkCondition(itt uint32, code senseCode) iscsi.SCSIResponse {
	c.t.Helper()
	r, data := c.response(itt)
	require.Equal(c.t, uint8(scsi.CheckCondition), r.Status)
	require.GreaterOrEqual(c.t, len(data), 2+18)
	got := senseCode(data[4]&15)<<16 | senseCode(data[14])<<8 | senseCode(data[15])
	require.Equal(c.t, code, got, "sense %06x, want %06x", got, code)
	return r
}

// TestCommandChecks goes through the table of ISER.md 3.2.
func TestCommandChecks(t *testing.T) {
	const closed, good, dropped = senseCode(1), senseCode(2), senseCode(3)
	write := func(edtl uint32) iscsi.SCSICommand {
		return iscsi.SCSICommand{Final: true, Write: true, EDTL: edtl}
	}
	for _, row := range []struct {
		name string
		neg  func(*iscsi.Config)
		cmd  iscsi.SCSICommand
		cdb  []byte
		data int
		want senseCode
	}{
		{"6 after the window", nil, iscsi.SCSICommand{Final: true, CmdSN: 200}, nil, 0, dropped},
		{"6 before the window", nil, iscsi.SCSICommand{Final: true, CmdSN: ^iscsi.CmdSN(0)}, nil, 0, dropped},
		{"8 reserved tag", nil, iscsi.SCSICommand{Final: true, ITT: iscsi.ReservedTag}, nil, 0, closed},
		{"10 F=0 without W", nil, iscsi.SCSICommand{}, nil, 0, closed},
		{"11 both directions", nil, iscsi.SCSICommand{Final: true, Read: true, Write: true, EDTL: 512}, read10(0, 1), 0, senseInvalidField},
		{"12 R without length", nil, iscsi.SCSICommand{Final: true, Read: true}, nil, 0, good},
		{"12 W without length", nil, write(0), nil, 0, good},
		{"13 length without direction", nil, iscsi.SCSICommand{Final: true, EDTL: 512}, nil, 0, good},
		{"16 data without W", nil, iscsi.SCSICommand{Final: true, Read: true, EDTL: 512}, read10(0, 1), 512, closed},
		{"17 ImmediateData=No", func(c *iscsi.Config) { c.ImmediateData = false }, write(512), write10(0, 1), 512, senseUnexpectedData},
		{"18 longer than declared", nil, write(16384), write10(0, 32), 8704, senseWrongAmount},
		{"19 longer than FirstBurstLength", func(c *iscsi.Config) { c.FirstBurstLength = 1024 }, write(4096), write10(0, 8), 2048, senseWrongAmount},
		{"20 longer than expected", nil, write(512), write10(0, 1), 1024, senseWrongAmount},
		{"21 all of it but F=0", nil, iscsi.SCSICommand{Write: true, EDTL: 512}, write10(0, 1), 512, closed},
		{"22 F=0 against InitialR2T=Yes", nil, iscsi.SCSICommand{Write: true, EDTL: 1024}, write10(0, 2), 512, senseUnexpectedData},
		{"23 immediate", nil, iscsi.SCSICommand{Final: true, Immediate: true}, nil, 0, good},
		{"24 unknown unit", nil, iscsi.SCSICommand{Final: true, LUN: lun(9)}, nil, 0, 0x05_25_00},
		{"longer than any transfer", nil, iscsi.SCSICommand{Final: true, Read: true, EDTL: 8 << 20}, read10(0, 16384), 0, senseInvalidField},
		{"EDTL of 4 GiB, small CDB", nil, iscsi.SCSICommand{Final: true, Read: true, EDTL: 0xffffffff}, read10(0, 1), 0, good},
	} {
		bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
			t.Run(row.name, func(t *testing.T) {
				if row.data > 8192 && !tr.RDMA {
					t.Skip("the length that TCP declares is longer than this")
				}
				b := newBench(t, benchConfig{neg: row.neg})
				var more []string
				if !tr.RDMA {
					more = []string{"InitialR2T=Yes"}
				}
				c := b.login(tr, more...)
				c.clearUA(0)
				cmd := row.cmd
				if cmd.CmdSN != 0 {
					keep := c.cmdSN
					c.cmdSN += cmd.CmdSN
					c.command(cmd, row.cdb, nil)
					c.cmdSN = keep
				} else {
					cmd.ITT = max(row.cmd.ITT, 77)
					c.command(cmd, row.cdb, make([]byte, row.data))
				}
				switch row.want {
				case closed:
					c.closes()
					assert.Contains(t, b.lines.String(), "session failed")
					return
				case good:
					r, _ := c.response(77)
					require.Zero(t, r.Status)
				case dropped:
				default:
					r := c.checkCondition(77, row.want)
					if cmd.EDTL > 0 && (cmd.Read || cmd.Write) {
						assert.True(t, r.Underflow && r.Residual == cmd.EDTL || row.want == 0x05_25_00, "nothing has moved: %+v", r)
					}
				}
				c.alive()
			})
		})
	}
}

func TestALiveTagCannotBeUsedAgain(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(1)
	b.slow.Hold()
	itt := c.read(1, 0, 1)
	b.slow.Held(t, 1)
	c.command(iscsi.SCSICommand{Final: true, ITT: itt}, nil, nil)
	c.dm.waitFor(t, "close", func() bool { return c.dm.closed })
	b.slow.Release()
}

func TestATagIsFreeWithItsResponse(t *testing.T) { // conformance 98: before the response has left
	b := newBench(t, benchConfig{})
	c := b.login(iserTraits)
	c.clearUA(0)
	c.dm.set(func() { c.dm.keepAll = true })
	for range 4 {
		c.command(iscsi.SCSICommand{Final: true, ITT: 5}, nil, nil)
		r, _ := c.response(5)
		require.Zero(t, r.Status)
	}
	c.dm.releaseAll()
	c.alive()
}

func TestACommandWithoutMemoryMovesNothing(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(iserTraits)
	c.clearUA(0)
	c.dm.set(func() { c.dm.noMemory = true })
	c.checkCondition(c.read(0, 0, 8), senseAborted)
	itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096}, write10(0, 8), make([]byte, 512))
	c.checkCondition(itt, senseAborted)
	// Where all data came along no memory is needed.
	itt = c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096}, write10(0, 8), make([]byte, 4096))
	r, _ := c.response(itt)
	require.Zero(t, r.Status)
}

func TestAdditionalHeaderSegments(t *testing.T) {
	for _, row := range []struct {
		name string
		ahs  []byte
		want senseCode
	}{
		{"extended CDB", (&iscsi.AHS{ExtendedCDB: make([]byte, 16)}).Append(nil), 0x05_20_00},
		{"bidirectional", (&iscsi.AHS{HasBidi: true, BidiEDTL: 512}).Append(nil), senseInvalidField},
		{"malformed", []byte{0xff, 0xff, 1, 0}, senseAborted},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c := b.login(tcpTraits)
			c.clearUA(0)
			cmd := iscsi.SCSICommand{Final: true, ITT: 9, CmdSN: c.cmdSN, AHSLength: uint8(len(row.ahs) / 4), CDB: [16]byte{0x7f, 7: 24}}
			c.cmdSN++
			var bhs [iscsi.BHSSize]byte
			cmd.Put(&bhs)
			c.push(bhs, row.ahs, nil)
			c.checkCondition(9, row.want)
			c.alive()
		})
	}
}

func TestOpcodesThatEndASession(t *testing.T) {
	for _, discovery := range []bool{false, true} {
		for op := range iscsi.Opcode(0x40) {
			switch op {
			case iscsi.OpNOPOut, iscsi.OpTextRequest, iscsi.OpLogoutReq:
				continue
			case iscsi.OpSCSICommand, iscsi.OpTMFRequest, iscsi.OpSNACK:
				if !discovery {
					continue
				}
			}
			b := newBench(t, benchConfig{chunks: 4})
			var c *client
			if discovery {
				c = b.discovery(tcpTraits)
			} else {
				c = b.login(tcpTraits)
			}
			var bhs [iscsi.BHSSize]byte
			bhs[0] = byte(op) | 0x40
			bhs[1] = 0x80
			c.push(bhs, nil, nil)
			c.closes()
		}
	}
}

func TestCommandsOutOfOrderAreDeliveredInOrder(t *testing.T) { // conformance 112 and 109
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	first := c.cmdSN
	send := func(n uint32) {
		c.cmdSN = first.Add(n)
		data := pattern(512, byte(n))
		c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, ITT: 50 + n}, write10(0, 1), data)
	}
	send(2)
	send(1)
	send(1) // duplicate
	send(0)
	for n := range uint32(3) {
		r, _ := c.response(50 + n)
		require.Zero(t, r.Status)
	}
	send(1) // old
	c.cmdSN = first.Add(3)
	itt := c.read(0, 0, 1)
	r, _ := c.response(itt)
	require.Zero(t, r.Status)
	c.dm.set(func() { assert.Equal(t, pattern(512, 2), c.dm.memory[itt]) })
}

func TestNumbersWrap(t *testing.T) { // conformance 111, field report LG-04
	b := newBench(t, benchConfig{})
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 0xfffffff0, stat: 0xfffffffa}
	c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
	resp, _ := c.loginResponse()
	require.Equal(t, iscsi.LoginSuccess, resp.Status)
	c.clearUA(0)
	for range 40 {
		c.alive()
	}
}

func TestTheWindowOfAFreshSession(t *testing.T) { // conformance 60, 61
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		b := newBench(t, benchConfig{chunks: 4096})
		seen := map[uint16]bool{0: true}
		for i := range 3 {
			c := &client{t: t, dm: b.connect(tr), cmdSN: 100, stat: 7}
			r := wholeLogin
			r.ISID[5] = byte(i)
			c.loginRequest(r, loginLines(tr)...)
			resp, _ := c.loginResponse()
			require.Equal(t, iscsi.LoginSuccess, resp.Status)
			assert.EqualValues(t, 100, resp.ExpCmdSN)
			assert.Equal(t, 128, resp.MaxCmdSN.Sub(resp.ExpCmdSN)+1)
			assert.False(t, seen[resp.TSIH])
			seen[resp.TSIH] = true
		}
	})
}

func TestImmediateRequestsTakeNoNumber(t *testing.T) { // conformance 113
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	var bhs [iscsi.BHSSize]byte
	exp := c.cmdSN
	for _, immediate := range []bool{true, false} {
		nop := iscsi.NOPOut{Immediate: immediate, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}
		nop.Put(&bhs)
		c.push(bhs, nil, []byte("0123456789"))
		if !immediate {
			exp++
			c.cmdSN++
		}
		p := c.expect(iscsi.OpNOPIn)
		var in iscsi.NOPIn
		require.NoError(t, in.Parse(&p.bhs))
		assert.Equal(t, exp, in.ExpCmdSN)
		assert.EqualValues(t, 3, in.ITT)
		assert.EqualValues(t, iscsi.ReservedTag, in.TTT)
		assert.Equal(t, c.stat, in.StatSN)
		assert.Equal(t, "0123456789", string(p.data))
		c.stat++
	}
}

func TestPingDataIsCutToWhatThePeerTakes(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(iserTraits)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, pattern(4096, 1))
	p := c.expect(iscsi.OpNOPIn)
	assert.Equal(t, pattern(4096, 1)[:128], p.data)
	// The answer to a ping that was never sent is ignored (conformance 115).
	c.stat++
	(&iscsi.NOPOut{Immediate: true, ITT: iscsi.ReservedTag, TTT: 99, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, nil)
	c.clearUA(0)
}

func TestPingsOfAPeerThatDoesNotReadEnd(t *testing.T) { // field report SE-13
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.dm.set(func() { c.dm.keepAll = true })
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	for range maxControls + 1 {
		c.push(bhs, nil, nil)
	}
	c.dm.waitFor(t, "close", func() bool { return c.dm.closed })
	assert.LessOrEqual(t, len(c.dm.out), maxControls+1)
}

func TestLogout(t *testing.T) { // conformance 125, field report RC-11
	synctest.Test(t, func(t *testing.T) { testLogout(t) })
}

func testLogout(t *testing.T) {
	for _, row := range []struct {
		reason   iscsi.LogoutReason
		cid      uint16
		response uint8
		closes   bool
	}{{0, 0, 0, true}, {1, 0, 0, true}, {1, 5, 1, false}, {2, 0, 2, false}} {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0)
		var bhs [iscsi.BHSSize]byte
		(&iscsi.LogoutRequest{Immediate: true, Reason: row.reason, CID: row.cid, ITT: 4, CmdSN: c.cmdSN}).Put(&bhs)
		c.push(bhs, nil, nil)
		p := c.expect(iscsi.OpLogoutResp)
		var r iscsi.LogoutResponse
		require.NoError(t, r.Parse(&p.bhs))
		assert.Equal(t, row.response, r.Response)
		assert.Equal(t, c.stat, r.StatSN)
		assert.Empty(t, p.data)
		c.stat++
		if !row.closes {
			c.alive()
			continue
		}
		c.command(iscsi.SCSICommand{Final: true}, nil, nil) // ignored
		c.closes()
		assert.Contains(t, b.lines.String(), "logged out")
		assert.NotContains(t, b.lines.String(), "session failed")
	}
}

func TestUnsolicitedData(t *testing.T) { // conformance 80 and 81
	type out struct {
		ttt    uint32
		sn     uint32
		off    uint32
		n      int
		final  bool
		itt    uint32
		digest bool
	}
	const none = iscsi.ReservedTag
	const passes, refused, closed = 0, 1, 2
	for _, row := range []struct {
		name  string
		edtl  uint32
		imm   int
		outs  []out
		fails int
	}{
		{"in one piece", 4096, 1024, []out{{none, 0, 1024, 3072, true, 0, false}}, passes},
		{"in odd pieces", 8192, 1, []out{{none, 0, 1, 1000, false, 0, false}, {none, 1, 1001, 7191, true, 0, false}}, passes},
		{"without immediate data", 4096, 0, []out{{none, 0, 0, 4096, true, 0, false}}, passes},
		{"DataSN and then more", 4096, 0, []out{{none, 1, 0, 512, false, 0, false}, {none, 2, 512, 3584, true, 0, false}}, refused},
		{"the rest is fetched", 65536, 0, []out{{none, 0, 0, 8192, true, 0, false}}, passes},
		{"less than it might be", 65536, 512, []out{{none, 0, 512, 512, true, 0, false}}, passes},
		{"unknown task", 4096, 1024, []out{{none, 0, 1024, 3072, true, 99, false}}, closed},
		{"target transfer tag", 4096, 1024, []out{{5, 0, 1024, 3072, true, 0, false}}, closed},
		{"offset", 4096, 1024, []out{{none, 0, 2048, 1024, true, 0, false}}, refused},
		{"DataSN", 4096, 1024, []out{{none, 27, 1024, 3072, true, 0, false}}, refused},
		{"second DataSN", 4096, 1024, []out{{none, 0, 1024, 512, false, 0, false}, {none, 0, 1536, 2560, true, 0, false}}, refused},
		{"past FirstBurstLength", 65536, 0, []out{{none, 0, 0, 8192, false, 0, false}, {none, 1, 8192, 512, true, 0, false}}, refused},
		{"past EDTL", 4096, 1024, []out{{none, 0, 1024, 4096, true, 0, false}}, refused},
		{"after the last", 4096, 1024, []out{{none, 0, 1024, 1024, true, 0, false}, {none, 1, 2048, 2048, true, 0, false}}, closed},
		{"empty and not the last", 4096, 1024, []out{{none, 0, 1024, 0, false, 0, false}, {none, 1, 1024, 3072, true, 0, false}}, refused},
		{"digest", 4096, 1024, []out{{none, 0, 1024, 3072, true, 0, true}}, closed},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, benchConfig{neg: func(c *iscsi.Config) { c.FirstBurstLength = 8192 }})
			c := b.login(tcpTraits, "InitialR2T=No")
			c.clearUA(0)
			data := pattern(int(row.edtl)+4096, 3)
			c.itt++
			itt := c.itt
			c.dm.set(func() { c.dm.memory[itt], c.dm.holdGets = data[:row.edtl], true })
			c.command(iscsi.SCSICommand{Write: true, EDTL: row.edtl, ITT: itt, LUN: lun(0)}, write10(0, int(row.edtl)/512), data[:row.imm])
			got := uint32(row.imm)
			for _, o := range row.outs {
				d := iscsi.DataOut{Final: o.final, ITT: itt, TTT: o.ttt, DataSN: o.sn, Offset: o.off, LUN: ^iscsi.LUN(0)}
				if o.itt != 0 {
					d.ITT = o.itt
				}
				var bhs [iscsi.BHSSize]byte
				d.Put(&bhs)
				iscsi.SetDataLength(&bhs, uint32(o.n))
				c.dm.set(func() {
					c.dm.push(fakeEvent{
						ev: iscsi.Event{Kind: iscsi.EventPDU, DigestError: o.digest}, bhs: bhs,
						data: append([]byte(nil), data[o.off:o.off+uint32(o.n)]...),
					})
				})
				got = o.off + uint32(o.n)
			}
			switch row.fails {
			case closed:
				c.closes()
				return
			case refused:
				c.checkCondition(itt, senseWrongAmount)
				itt = c.read(0, 0, 16)
				c.response(itt)
				c.dm.set(func() { assert.Equal(t, make([]byte, 8192), c.dm.memory[itt], "nothing was written") })
				return
			}
			if got < row.edtl {
				c.dm.waitFor(t, "GetData", func() bool { return c.dm.gets[itt] != nil })
				c.dm.set(func() {
					assert.Equal(t, got, c.dm.gets[itt].off)
					c.dm.finish(itt)
				})
			}
			r, _ := c.response(itt)
			require.Zero(t, r.Status)
			require.False(t, r.Underflow || r.Overflow, "field report RS-01")
			itt = c.read(0, 0, int(row.edtl)/512)
			c.response(itt)
			c.dm.set(func() { assert.True(t, bytes.Equal(data[:row.edtl], c.dm.memory[itt])) })
		})
	}
}

// TestARefusedWriteTakesItsData: data that was announced and allowed is swallowed before the answer.
func TestARefusedWriteTakesItsData(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, "InitialR2T=No")
	c.clearUA(0)
	for _, row := range []struct {
		cdb  []byte
		unit int
		want senseCode
	}{{write10(1<<30, 2), 0, 0x05_21_00}, {write10(0, 2), 9, 0x05_25_00}} {
		itt := c.command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: lun(row.unit)}, row.cdb, make([]byte, 512))
		c.ping()
		var bhs [iscsi.BHSSize]byte
		(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
		c.push(bhs, nil, make([]byte, 512))
		c.checkCondition(itt, row.want)
	}
	c.alive()
}

// ping proves that the target has seen all that was sent before, and has nothing else to say.
func (c *client) ping() {
	c.t.Helper()
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 0x9999, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, nil)
	p := c.expect(iscsi.OpNOPIn)
	require.EqualValues(c.t, 0x9999, binary.BigEndian.Uint32(p.bhs[16:]))
	c.stat++
}

// TestResiduals: the expected length and what the CDB asks for differ (field report RS-03).
func TestResiduals(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(iserTraits)
	c.clearUA(0)
	fill := bytes.Repeat([]byte("a"), 1024)
	for _, row := range []struct {
		blocks      int
		edtl        uint32
		over, under bool
		residual    uint32
	}{
		{1, 512, false, false, 0},
		{1, 1024, false, true, 512},
		{1, 8192, false, true, 7680},
		{2, 512, true, false, 512},
	} {
		itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024}, write10(0, 2), fill)
		c.response(itt)
		data := pattern(int(row.edtl), 9)
		c.itt++
		itt = c.itt
		c.dm.set(func() { c.dm.memory[itt] = data })
		c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: row.edtl, ITT: itt}, write10(0, row.blocks), nil)
		r, _ := c.response(itt)
		require.Zero(t, r.Status, "%+v", row)
		assert.Equal(t, []bool{row.over, row.under}, []bool{r.Overflow, r.Underflow}, "%+v", row)
		assert.Equal(t, row.residual, r.Residual)
		want := append([]byte(nil), fill...)
		copy(want, data[:min(int(row.edtl), row.blocks*512)])
		itt = c.read(0, 0, 2)
		c.response(itt)
		c.dm.set(func() { assert.Equal(t, want, c.dm.memory[itt]) })
	}
}
