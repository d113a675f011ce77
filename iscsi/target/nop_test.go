package target_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPingsOverALinkStuffedWithReadData: a reader that is much slower than its reads neither loses its session,
// though the target would like to ping every few milliseconds, nor waits for the answer to its own ping until all
// of the data is there (field report RC-08).
func TestPingsOverALinkStuffedWithReadData(t *testing.T) {
	const reads, size = 48, 1 << 20
	b := newTCPBench(t, 64, target.Config{PingInterval: 5 * time.Millisecond, PingTimeout: 2 * time.Second}, nil)
	w := b.dial()
	w.login(1, "MaxRecvDataSegmentLength=262144", "FirstBurstLength=512") // little, for a window of all the reads
	w.ready()
	for range reads {
		w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: size, CDB: cdb10(0x28, 0, size/512)}, nil)
	}
	ping := bytes.Repeat([]byte{0xa5}, 4096)
	(&iscsi.NOPOut{Immediate: true, ITT: 0x9999, TTT: iscsi.ReservedTag, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
	w.send(&w.hdr, ping)

	done, before := 0, -1
	for done < reads || before < 0 {
		time.Sleep(500 * time.Microsecond) // this is the slow link: a PDU now and then
		bhs, data, err := w.recv()
		require.NoError(t, err)
		switch iscsi.OpcodeOf(bhs) {
		case iscsi.OpDataIn:
			var d iscsi.DataIn
			require.NoError(t, d.Parse(bhs))
			if d.HasStatus {
				require.Zero(t, d.Status)
				done++
			}
		case iscsi.OpSCSIResponse:
			done++
		case iscsi.OpNOPIn:
			var in iscsi.NOPIn
			require.NoError(t, in.Parse(bhs))
			if in.ITT == 0x9999 {
				before = done
				require.Equal(t, ping, data)
				continue
			}
			if in.TTT != iscsi.ReservedTag {
				(&iscsi.NOPOut{Immediate: true, ITT: iscsi.ReservedTag, TTT: in.TTT, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
				w.send(&w.hdr, nil)
			}
		default:
			t.Fatalf("unexpected %v", iscsi.OpcodeOf(bhs))
		}
	}
	assert.Less(t, before, reads/2, "the ping was answered behind %d of %d reads", before, reads)
}

// TestReadDataKeepsToWhatIsDeclaredAnew: MaxRecvDataSegmentLength may change at any time (RFC 7143, 13.12).
func TestReadDataKeepsToWhatIsDeclaredAnew(t *testing.T) {
	b := newTCPBench(t, 64, target.Config{}, nil)
	w := b.dial()
	w.login(1, "MaxRecvDataSegmentLength=65536")
	w.ready()
	longest := func() (n int) {
		w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: 65536, CDB: cdb10(0x28, 0, 128)}, nil)
		for {
			bhs, data, err := w.recv()
			require.NoError(t, err)
			n = max(n, len(data))
			if iscsi.OpcodeOf(bhs) == iscsi.OpSCSIResponse || bhs[1]&1 != 0 { // S: the status is in it
				return n
			}
		}
	}
	assert.Equal(t, 65536, longest())
	for _, n := range []int{1024, 32768} {
		(&iscsi.TextRequest{Final: true, Immediate: true, ITT: 0x8888, TTT: iscsi.ReservedTag, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
		w.send(&w.hdr, fmt.Appendf(nil, "MaxRecvDataSegmentLength=%d\x00", n))
		bhs, data, err := w.recv()
		require.NoError(t, err)
		require.Equal(t, iscsi.OpTextResponse, iscsi.OpcodeOf(bhs))
		require.Empty(t, data)
		assert.Equal(t, n, longest())
	}
}
