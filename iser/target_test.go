package iser

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func TestReadIsWritesThenOneSend(t *testing.T) {
	for _, registered := range []bool{true, false} {
		b, p := newTarget(t, fabric.Options{RNRFatal: true, TwoDevices: true}, TargetConfig{}, agreed)
		b.enable(normalParams())
		p.post(4)
		m := p.lendOnce(3*65536, rdma.RemoteWrite)
		data := pattern(make([]byte, 100000), 7)
		if registered {
			require.NoError(t, b.lis.Register(data))
		}
		tr := b.command(p, readCommand(5, m, 131072))
		b.tap.take()
		require.True(t, b.tgt.CanPut(tr))
		b.tgt.PutData(tr, split(data, 30000), 0)
		b.tgt.Respond(tr, response(5), nil)
		require.Empty(t, b.tap.take(), "nothing leaves before Flush")
		require.NoError(t, b.tgt.Flush())
		ops := b.tap.take()
		var next uint64
		for _, o := range ops[:len(ops)-1] {
			assert.Equal(t, rdma.OpWrite, o.Op)
			assert.Equal(t, m.addr+next, o.Addr)
			assert.Equal(t, m.key, o.Key)
			next += o.Length
		}
		assert.EqualValues(t, len(data), next)
		last := ops[len(ops)-1]
		assert.Equal(t, rdma.OpSendInv, last.Op)
		assert.Equal(t, m.key, last.Key)
		a := p.recv()
		assert.Equal(t, append(append([]byte{0x10}, make([]byte, 27)...), response(5)[:]...), a.b)
		assert.Equal(t, data, m.mem[:len(data)])
		assert.Equal(t, make([]byte, len(m.mem)-len(data)), m.mem[len(data):], "nothing behind the data")
		ev := b.until(iscsi.EventReleased)
		assert.Same(t, tr, ev.Transfer)
		assert.Zero(t, tr.DM)
		assert.True(t, b.tgt.Idle())
	}
}
