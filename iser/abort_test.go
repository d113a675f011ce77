package iser

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
)

// lun addresses a unit.
func (w wireCommand) lun(n int) wireCommand {
	w.LUN = iscsi.LUNFromNumber(n)
	return w
}

// TestNoOperationOfATaskFollowsTheFunctionThatEndedIt is conformance 119, 120 and 123, and TM-03: with
// RDMA Reads and Writes in flight, commands in a store and one that is held back, no RDMA operation with
// a key of an ended task is executed after the function's response, no response follows, and nothing is
// written.
func TestNoOperationOfATaskFollowsTheFunctionThatEndedIt(t *testing.T) {
	const (
		size   = 128 << 10
		tmfTag = 0x8000
		each   = 6
		unit1  = 1
	)
	for _, f := range []iscsi.TMFunction{
		iscsi.TMAbortTask, iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset, iscsi.TMTargetWarmReset,
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%v, seed %d", f, seed), func(t *testing.T) {
				ops := &tap{}
				s := newServer(t, fabric.Options{TwoDevices: true, Seed: seed, Tap: ops.record})
				ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, ram.Close()) })
				g := &backstoretest.Gate{Store: ram}
				_, err = s.dev.Add(unit1, g, scsi.LUConfig{ID: "gated"})
				require.NoError(t, err)
				h := &hand{connectPeer(t, s.f, refused, func() {}), 1} // plain keys cannot be invalidated
				require.Equal(t, iscsi.LoginSuccess, h.login(1, normalKeys...).Status)
				for unit := range 2 {
					h.post(1)
					h.command(wireCommand{SCSICommand: iscsi.SCSICommand{Final: true, ITT: 2}}.lun(unit))
					require.EqualValues(t, scsi.CheckCondition, h.status(2))
				}

				type sent struct {
					unit int
					sn   iscsi.CmdSN
					key  uint32
				}
				tasks := map[uint32]sent{}
				h.post(4*each + 40)
				do := func(unit int, w wireCommand) {
					tasks[w.ITT] = sent{unit, h.cmdSN, w.ReadSTag | w.WriteSTag}
					h.command(w.lun(unit))
				}
				g.Hold()
				for i := range 2 {
					w := readCommand(uint32(0x100+i), h.lend(4096, rdma.LocalWrite|rdma.RemoteWrite), 4096)
					w.CDB = readCDB(0, 8)
					do(unit1, w)
					w = writeCommand(uint32(0x110+i), lent{}, 512, pattern(make([]byte, 512), 1))
					w.CDB = writeCDB(i, 1)
					do(unit1, w)
				}
				w := writeCommand(0x120, h.lend(size, rdma.RemoteRead), size, nil)
				w.CDB, w.Attr = writeCDB(16, size/512), iscsi.AttrOrdered
				do(unit1, w)
				g.Held(t, 4)
				for i := range each {
					w := writeCommand(uint32(0x200+i), h.lend(size, rdma.RemoteRead), size, nil)
					w.CDB = writeCDB(i*size/512, size/512)
					do(0, w)
					w = readCommand(uint32(0x300+i), h.lend(size, rdma.LocalWrite|rdma.RemoteWrite), size)
					w.CDB = readCDB(0, size/512)
					do(0, w)
				}
				functions := 0
				ask := func(tag uint32, unit int, ref uint32, refSN iscsi.CmdSN) {
					functions++
					h.pdu((&iscsi.TMFRequest{
						Immediate: true, Function: f, ITT: tag, LUN: iscsi.LUNFromNumber(unit), RefITT: ref, CmdSN: h.cmdSN, RefCmdSN: refSN,
					}).Put, nil)
				}
				if f == iscsi.TMAbortTask {
					for itt, k := range tasks {
						ask(tmfTag+itt, k.unit, itt, k.sn)
					}
				} else {
					ask(tmfTag, 0, iscsi.ReservedTag, 0)
					ask(tmfTag+1, 1, iscsi.ReservedTag, 0)
				}
				h.pdu((&iscsi.NOPOut{Immediate: true, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: h.cmdSN}).Put, nil)

				answered, status, open := map[uint32]int{}, map[uint32]int{}, false
				for n := 0; len(answered) < functions || !open; n++ {
					b := h.recv().b[HeaderSize:]
					itt := binary.BigEndian.Uint32(b[16:])
					switch op := iscsi.Opcode(b[0]); op {
					case iscsi.OpNOPIn: // all functions have been taken
						g.Release()
						open = true
					case iscsi.OpTMFResponse:
						require.NotContains(t, answered, itt)
						answered[itt] = n
					case iscsi.OpSCSIResponse:
						require.NotContains(t, status, itt)
						status[itt] = n
					default:
						t.Fatalf("%v", op)
					}
				}
				// What could still come has come by the answer to this.
				h.pdu((&iscsi.NOPOut{Immediate: true, ITT: 4, TTT: iscsi.ReservedTag, CmdSN: h.cmdSN}).Put, nil)
				require.Equal(t, byte(iscsi.OpNOPIn), h.recv().b[HeaderSize], "a PDU of an ended task")

				all := ops.take()
				ends := map[uint32]int{} // where a function's response was executed, by its tag
				for i, o := range all {
					if o.Op == rdma.OpSend && len(o.bytes) > HeaderSize && iscsi.Opcode(o.bytes[HeaderSize]) == iscsi.OpTMFResponse {
						ends[binary.BigEndian.Uint32(o.bytes[HeaderSize+16:])] = i
					}
				}
				for itt, k := range tasks {
					tag := uint32(tmfTag + k.unit)
					if f == iscsi.TMAbortTask {
						tag = tmfTag + itt
					}
					end, ok := ends[tag]
					require.True(t, ok)
					if at, ok := status[itt]; ok {
						assert.Less(t, at, answered[tag], "task %x was answered after the function that ended it", itt)
					}
					for _, o := range all[end:] {
						if k.key != 0 && o.Key == k.key {
							t.Errorf("task %x: %v of its memory after the function that ended it", itt, o.Op)
						}
					}
				}
				held := make([]byte, size)
				require.NoError(t, ram.ReadAt([][]byte{held}, 16*512))
				assert.True(t, bytes.Equal(held, make([]byte, size)), "the command that was held back has written")
				h.close()
			})
		}
	}
}
