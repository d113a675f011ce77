package target

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/require"
)

// A fuzzInput is read as a program for an initiator that knows no rules.
type fuzzInput struct{ b []byte }

func (f *fuzzInput) byte() byte {
	if len(f.b) == 0 {
		return 0
	}
	c := f.b[0]
	f.b = f.b[1:]
	return c
}

func (f *fuzzInput) u32() uint32 {
	var b [4]byte
	f.b = f.b[copy(b[:], f.b):]
	return binary.BigEndian.Uint32(b[:])
}

// tag is one of a few task tags.
func (f *fuzzInput) tag() uint32 {
	if t := f.byte(); t != 0xff {
		return uint32(t & 7)
	}
	return iscsi.ReservedTag
}

func (f *fuzzInput) length() uint32 { return uint32(f.byte()) << (f.byte() & 15) }

// step does one thing: sends a PDU or lets a transfer go on.
func (f *fuzzInput) step(c *client) {
	var bhs [iscsi.BHSSize]byte
	var ahs []byte
	n := 0
	kind, flags := f.byte(), f.byte()
	sn := c.cmdSN + iscsi.CmdSN(flags>>5)
	if flags>>5 < 6 {
		sn = c.cmdSN
	}
	unit := lun(int(flags & 3))
	switch kind % 9 {
	case 0:
		f.b = f.b[copy(bhs[:], f.b):]
		n = int(f.length() & 0x3fff)
	case 1, 2:
		p := iscsi.SCSICommand{
			Immediate: flags&4 != 0, Final: flags&8 != 0, Write: kind%9 == 1, Read: kind%9 == 2 || flags&16 != 0,
			LUN: unit, ITT: f.tag(), EDTL: f.length(), CmdSN: sn,
		}
		cdb := rw10(f.byte(), int(f.byte()), int(f.byte()))
		if f.byte()&1 == 0 {
			cdb[0] = map[bool]byte{true: 0x2a, false: 0x28}[p.Write]
		}
		copy(p.CDB[:], cdb)
		if f.byte() == 1 {
			ahs = (&iscsi.AHS{ExtendedCDB: make([]byte, 4)}).Append(nil)
			p.AHSLength = uint8(len(ahs) / 4)
		}
		p.Put(&bhs)
		if p.Write {
			n = int(min(f.length(), p.EDTL+8) & 0x3ffff)
		}
	case 3:
		(&iscsi.TMFRequest{
			Immediate: flags&4 != 0, Function: iscsi.TMFunction(f.byte() & 15), LUN: unit, ITT: 0x70, RefITT: f.tag(),
			CmdSN: sn, RefCmdSN: sn - iscsi.CmdSN(f.byte()&3),
		}).Put(&bhs)
	case 4:
		p := iscsi.DataOut{Final: flags&4 != 0, ITT: f.tag(), TTT: iscsi.ReservedTag, DataSN: uint32(flags >> 4 & 1), Offset: f.length()}
		if flags&8 != 0 {
			p.TTT = f.u32()
		}
		p.Put(&bhs)
		n = int(f.length() & 0x3fff)
	case 5:
		c.dm.set(func() {
			for itt := range c.dm.gets {
				c.dm.finish(itt)
				break
			}
		})
		return
	case 6:
		(&iscsi.TextRequest{Immediate: flags&4 != 0, Final: flags&8 != 0, Continue: flags&16 != 0, ITT: f.tag(), TTT: f.tag(), CmdSN: sn}).Put(&bhs)
		c.push(bhs, nil, text("SendTargets="))
		return
	case 7:
		(&iscsi.NOPOut{Immediate: flags&4 != 0, ITT: f.tag(), TTT: f.tag(), CmdSN: sn}).Put(&bhs)
		n = int(flags)
	case 8:
		c.dm.releaseAll()
		c.dm.set(func() { c.dm.keepAll = flags&4 != 0 })
		return
	}
	if !iscsi.IsImmediate(&bhs) && iscsi.OpcodeOf(&bhs) != iscsi.OpDataOut {
		c.cmdSN = sn + 1
	}
	c.push(bhs, ahs, make([]byte, n))
}

// FuzzFFP feeds any sequence of PDUs to a session: no panic, tasks and answers within their bounds, and
// when the connection has ended every buffer is back.
func FuzzFFP(f *testing.F) {
	f.Add(uint8(0), []byte("\x01\x08\x01\x08\x09\x00\x00\x08\x00\x00\x02\x08\x05\x08\x02\x08\x09\x00\x00\x08\x00\x00"))
	f.Add(uint8(1), []byte("\x01\x09\x01\x10\x09\x00\x00\x10\x00\x00\x05\x00\x03\x05\x05\x01\x00\x08\x04"))
	f.Add(uint8(2), []byte("\x01\x01\x01\x10\x09\x00\x00\x10\x00\x00\x02\x08\x04\x04\x01\x02\x08\x02\x08\x06\x08\x01\xff\x07\x04\x01\xff"))
	f.Add(uint8(4), []byte("\x07\xe4\x01\xff\x02\xc9\x02\x08\x09\x28\x00\x08\x00\x00\x02\x09\x03\x08\x09\x28\x00\x08\x00\x00"))
	f.Fuzz(func(t *testing.T, how uint8, program []byte) {
		b := newBench(t, benchConfig{chunks: 32, size: "1MiB", config: Config{Workers: 2, MaxTransfer: 512 << 10}})
		tr := tcpTraits
		if how&1 != 0 {
			tr = iserTraits
		}
		c := b.login(tr, "InitialR2T="+map[bool]string{true: "Yes", false: "No"}[how&2 != 0])
		c.dm.set(func() { c.dm.holdGets = how&4 == 0 })
		in := &fuzzInput{program}
		for range 200 {
			if len(in.b) == 0 {
				break
			}
			in.step(c)
		}
		c.dm.set(func() { c.dm.holdGets = false })
		c.dm.set(func() { c.dm.err = io.EOF })
		c.dm.waitFor(t, "close", func() bool { return c.dm.closed })
		b.sessionsEnd(0)
		require.LessOrEqual(t, len(c.dm.out), 4*200)
		if l := b.lines.String(); strings.Contains(l, "internal error") {
			t.Fatal(l)
		}
	})
}
