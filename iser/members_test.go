package iser

import (
	"bytes"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestASessionOfTwoConnections: commands of both take their turns, data over one is there over the other, and the
// session ends with either (RFC 7143, 4.2.2.1 and 7.1.5). The iSER keys are each connection's own.
func TestASessionOfTwoConnections(t *testing.T) {
	s := newServer(t, fabric.Options{TwoDevices: true})
	one := s.connect()
	login := one.login(1, append(normalKeys, "MaxConnections=8")...)
	require.Equal(t, iscsi.LoginSuccess, login.Status)
	two := s.connect()
	joined := two.join(login.TSIH, 7, 1, append(normalKeys[:2:2], "InitiatorRecvDataSegmentLength=1024")...)
	require.Equal(t, iscsi.LoginSuccess, joined.Status)
	require.Equal(t, login.TSIH, joined.TSIH)
	one.post(4)
	two.post(4)
	one.command(wireCommand{SCSICommand: iscsi.SCSICommand{Final: true, ITT: 1}})
	require.EqualValues(t, 2, one.status(1), "unit attention")

	write := func(h *hand, sn iscsi.CmdSN, itt uint32, fill byte) {
		w := writeCommand(itt, lent{}, 512, bytes.Repeat([]byte{fill}, 512))
		w.CDB = writeCDB(3, 1)
		h.cmdSN = sn
		h.command(w)
	}
	write(two, 4, 14, 3)
	write(two, 3, 13, 2)
	write(one, 2, 12, 1)
	assert.Zero(t, one.status(12))
	assert.Zero(t, two.status(13))
	assert.Zero(t, two.status(14))
	assert.Equal(t, bytes.Repeat([]byte{3}, 512), s.ram[3*512:4*512], "the last by CmdSN")

	two.close()
	message := one.recv().b[HeaderSize:]
	assert.Equal(t, byte(iscsi.OpAsync), message[0])
	assert.EqualValues(t, iscsi.AsyncSessionDrop, message[36])
	one.until(func() bool { return len(one.bad) > 0 })
}
