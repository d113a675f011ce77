package initiator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// textTarget answers discovery with parts, each one PDU; parts end with F.
func textTarget(parts []string, change func(i int, rsp *iscsi.TextResponse)) (*fakeTarget, *[]iscsi.TextRequest) {
	ft := newFakeTarget(nil)
	var asked []iscsi.TextRequest
	control := ft.onSend
	ft.onSend = func(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte) {
		if op != iscsi.OpTextRequest {
			control(op, bhs, data)
			return
		}
		var req iscsi.TextRequest
		_ = req.Parse(bhs)
		i := len(asked)
		asked = append(asked, req)
		if i == 0 { // a ping in between must not disturb
			ft.pdu(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 77}, nil)
		}
		rsp := iscsi.TextResponse{Final: i == len(parts)-1, ITT: req.ITT, TTT: 0x99, StatSN: ft.stat()}
		if rsp.Final {
			rsp.TTT = iscsi.ReservedTag
		}
		if change != nil {
			change(i, &rsp)
		}
		ft.pdu(&rsp, []byte(parts[min(i, len(parts)-1)]))
	}
	return ft, &asked
}

func TestDiscoveryCollectsASplitAnswer(t *testing.T) { // checklist 161
	whole := "TargetName=iqn.2026-01.test:a\x00TargetAddress=10.0.0.1:3260,1\x00TargetAddress=[fe80::1]:3260,1\x00" +
		"TargetName=iqn.2026-01.test:b\x00TargetName=iqn.2026-01.test:a\x00TargetAddress=10.0.0.2:3260,2\x00"
	for _, size := range []int{1, 7, 40, len(whole)} {
		var parts []string
		for s := whole; s != ""; s = s[min(size, len(s)):] {
			parts = append(parts, s[:min(size, len(s))])
		}
		ft, asked := textTarget(parts, func(_ int, rsp *iscsi.TextResponse) { rsp.Continue = !rsp.Final })
		list, err := Discover(context.Background(), ft.transport(), "h:1", Options{})
		require.NoError(t, err)
		assert.Equal(t, []TargetRecord{
			{"iqn.2026-01.test:a", []string{"10.0.0.1:3260,1", "[fe80::1]:3260,1", "10.0.0.2:3260,2"}},
			{"iqn.2026-01.test:b", nil},
		}, list)
		require.Len(t, *asked, len(parts))
		for i, req := range *asked {
			assert.Equal(t, i > 0, req.TTT == 0x99, "request %d", i)
			assert.True(t, req.Final)
			assert.False(t, req.Immediate)
			assert.Equal(t, iscsi.CmdSN(1).Add(uint32(i)), req.CmdSN)
			assert.Equal(t, i == 0, req.DataLength > 0)
		}
		var ops strings.Builder
		for _, p := range ft.sent[1:] {
			ops.WriteString(iscsi.OpcodeOf(&p.bhs).String() + " ")
		}
		assert.True(t, strings.HasSuffix(ops.String(), "Logout Request "))
		assert.Contains(t, ops.String(), "NOP-Out")
		assert.Equal(t, 1, ft.closed)
	}
}

func TestDiscoveryFailures(t *testing.T) {
	for name, c := range map[string]struct {
		parts  []string
		change func(i int, rsp *iscsi.TextResponse)
		err    string
	}{
		"unfinished, no tag":     {[]string{"TargetName=a\x00"}, func(_ int, r *iscsi.TextResponse) { r.Final = false }, "does not go on"},
		"nothing, for ever":      {[]string{"", ""}, func(_ int, r *iscsi.TextResponse) { r.Final, r.TTT = false, 1 }, "does not go on"},
		"much, for ever":         {[]string{"X=" + strings.Repeat("y", 8000)}, func(_ int, r *iscsi.TextResponse) { r.Final, r.TTT = false, 1 }, "more than"},
		"another ITT":            {[]string{""}, func(_ int, r *iscsi.TextResponse) { r.ITT = 7 }, "ITT 00000007"},
		"address before name":    {[]string{"TargetAddress=x\x00"}, nil, "before TargetName"},
		"control characters":     {[]string{"TargetName=a\nb\x00"}, nil, `TargetName="a\nb"`},
		"not text":               {[]string{"\x01\x02"}, nil, "list of targets"},
		"SendTargets not served": {[]string{"SendTargets=Reject\x00"}, nil, "SendTargets=Reject"},
	} {
		t.Run(name, func(t *testing.T) {
			ft, _ := textTarget(c.parts, c.change)
			ft.keep = true
			_, err := Discover(context.Background(), ft.transport(), "h:1", Options{})
			assert.ErrorContains(t, err, c.err)
			assert.Equal(t, 1, ft.closed)
		})
	}
}

func TestDiscoveryOfOtherPDUs(t *testing.T) {
	for name, c := range map[string]struct {
		pdu interface{ Put(*[iscsi.BHSSize]byte) }
		err string
	}{
		"reject":        {&iscsi.Reject{Reason: iscsi.RejectNotSupported}, "command not supported"},
		"SCSI response": {&iscsi.SCSIResponse{}, "SCSI Response in a discovery session"},
	} {
		t.Run(name, func(t *testing.T) {
			ft := newFakeTarget(nil)
			control := ft.onSend
			ft.onSend = func(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte) {
				if op != iscsi.OpTextRequest {
					control(op, bhs, data)
					return
				}
				ft.pdu(&iscsi.Async{Event: iscsi.AsyncVendor}, nil)
				ft.pdu(c.pdu, nil)
			}
			_, err := Discover(context.Background(), ft.transport(), "h:1", Options{})
			assert.ErrorContains(t, err, c.err)
		})
	}
}

func TestDiscoveryOfASilentPortal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil)
		control := ft.onSend
		ft.deaf.Store(true)
		ft.onSend = func(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte) {
			if op != iscsi.OpTextRequest {
				control(op, bhs, data)
			}
		}
		_, err := Discover(t.Context(), ft.transport(), "h:1", Options{})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, ft.closed)
	})
}

func TestManyTargets(t *testing.T) { // DI-01
	var text []byte
	for i := range 5000 {
		text = iscsi.AppendText(text, iscsi.KeyValue{Key: "TargetName", Value: fmt.Sprintf("iqn.2026-01.test:%0180d", i)})
		for a := range 4 {
			text = iscsi.AppendText(text, iscsi.KeyValue{Key: "TargetAddress", Value: fmt.Sprintf("10.0.0.%d:3260,1", a)})
		}
	}
	list, err := parseTargets(text)
	require.NoError(t, err)
	require.Len(t, list, 5000)
	assert.Len(t, list[4999].Addresses, 4)
}
