package iser

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
)

// FuzzSend: whatever a peer sends, either it is a PDU whose parts lie in what was received, or the
// connection ends; and everything is given back.
func FuzzSend(f *testing.F) {
	for _, s := range []string{read10, write10, responseGood} {
		f.Add(unhex(f, s), true)
		f.Add(unhex(f, s), false)
	}
	f.Add(append(unhex(f, write10Immediate), make([]byte, 8192)...), true)
	f.Add(testMessage(16, 21), true)
	f.Add(testMessage(260, 1), false)
	f.Add(responseBytes(iscsi.SCSIResponse{ITT: 1, Underflow: true, Residual: 0xffffffff}), false)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, toTarget bool) {
		if len(b) > recvSize {
			b = b[:recvSize]
		}
		if toTarget {
			fuzzTarget(t, b)
		} else {
			fuzzInitiator(t, b)
		}
	})
}

func fuzzTarget(t *testing.T, raw []byte) {
	b, p := newTarget(t, strict, TargetConfig{Window: 1}, agreed)
	b.enable(normalParams())
	p.post(4)
	p.start(raw)
	for _, ev := range b.wait(patience) {
		require.LessOrEqual(t, fixedSize+len(ev.AHS)+len(ev.Data), len(raw))
		tr := &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 512, Remote: ev.Remote}
		// An engine that moves data as far as it is allowed to.
		if b.tgt.CanPut(tr) {
			b.tgt.PutData(tr, [][]byte{make([]byte, 512)}, 0)
			b.tgt.Respond(tr, response(tr.ITT), nil)
		} else if b.tgt.CanGet(tr) {
			b.tgt.GetData(tr, [][]byte{make([]byte, 512)}, 0)
		}
		_ = b.tgt.Flush()
	}
	b.wait(time.Millisecond)
	require.NoError(t, b.tgt.Close())
	p.close()
}

func fuzzInitiator(t *testing.T, raw []byte) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1, PoolBytes: 1})
	b.enable(normalParams())
	p.post(4)
	in := make([]byte, 600)
	for i := range in {
		in[i] = 0xee
	}
	tr := &iscsi.Transfer{ITT: 1, EDTL: 500, In: [][]byte{in[:500]}}
	b.start(tr, true, false)
	require.NoError(t, b.ini.Flush())
	p.start(raw)
	for _, ev := range b.wait(patience) {
		if ev.Kind == iscsi.EventPDU {
			require.LessOrEqual(t, fixedSize+len(ev.AHS)+len(ev.Data), len(raw))
		}
	}
	require.LessOrEqual(t, b.ini.Received(tr), uint32(500))
	for _, c := range in[500:] {
		require.Equal(t, byte(0xee), c)
	}
	_ = b.ini.Flush()
	b.wait(time.Millisecond)
	require.NoError(t, b.ini.Close())
	p.close()
	require.Zero(t, b.f.Gauges().Regions)
}
