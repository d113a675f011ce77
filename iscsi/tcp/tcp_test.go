package tcp

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListenAndDial(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			l, err := Listen(addr)
			if addr[0] == '[' && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
				t.Skip("no IPv6 here: ", err)
			}
			require.NoError(t, err)
			defer l.Close()
			assert.Equal(t, "tcp", l.Transport())
			require.NoError(t, l.Register(make([]byte, 10)))
			require.NoError(t, l.Unregister(nil))
			var d Dialer
			i, err := d.Dial(context.Background(), l.Addr().String())
			require.NoError(t, err)
			defer i.Close()
			tg, err := l.Accept(context.Background())
			require.NoError(t, err)
			defer tg.Close()
			assert.Equal(t, i.LocalAddr().String(), tg.RemoteAddr().String())
			assert.Equal(t, i.RemoteAddr().String(), tg.LocalAddr().String())
			assert.Equal(t, "tcp", d.Name())
			for _, tr := range []iscsi.Traits{i.Traits(), tg.Traits()} {
				assert.Equal(t, iscsi.Traits{Name: "tcp", MaxLoginData: 8192, MaxRecvData: 256 << 10}, tr)
			}
			assert.True(t, tg.CanPut(nil) && tg.CanGet(nil))
			var bhs [iscsi.BHSSize]byte
			(&iscsi.LoginRequest{ITT: 5}).Put(&bhs)
			i.Send(&bhs, nil)
			require.NoError(t, i.Flush())
			assert.True(t, i.Idle())
			assert.EqualValues(t, 5, iscsi.ITTOf(collect(t, tg, 1)[0].BHS))
		})
	}
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Millisecond, cancel)
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)

	// Another context, and the listener works as before.
	var d Dialer
	i, err := d.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	defer i.Close()
	tg, err := l.Accept(context.Background())
	require.NoError(t, err)
	require.NoError(t, tg.Close())

	require.NoError(t, l.Close())
	_, err = l.Accept(context.Background())
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = d.Dial(context.Background(), l.Addr().String())
	require.Error(t, err)
}

func TestRespondTellsWhenAnyPDUHasLeft(t *testing.T) {
	near, far := net.Pipe()
	dm := NewTarget(near)
	defer dm.Close()
	p := params()
	require.NoError(t, dm.Enable(&p, &iscsi.Sequence{}))
	var bhs [iscsi.BHSSize]byte
	(&iscsi.LogoutResponse{ITT: 6}).Put(&bhs)
	var tr iscsi.Transfer
	dm.Respond(&tr, &bhs, nil)
	require.NoError(t, dm.Flush())
	assert.False(t, dm.Idle())
	evs := make([]iscsi.Event, 1)
	n, err := dm.Wait(evs, time.Now().Add(time.Millisecond))
	require.NoError(t, err)
	require.Zero(t, n, "nobody has read it")
	raw := &peer{t: t, nc: far}
	go raw.recv(&iscsi.LogoutResponse{})
	ev := collect(t, dm, 1)[0]
	assert.Equal(t, iscsi.EventReleased, ev.Kind)
	assert.Equal(t, &tr, ev.Transfer)
	assert.True(t, dm.Idle())
}

func TestDeathOfATargetGivesBackWhatWasAnswered(t *testing.T) {
	near, far := net.Pipe()
	d := newDisk(near, params(), 4096)
	var answered, pending, later iscsi.Transfer
	answered.EDTL, pending.EDTL = 4096, 4096
	bufs := [][]byte{d.mem}
	d.dm.PutData(&answered, bufs, 0)
	(&iscsi.SCSIResponse{}).Put(&d.bhs)
	d.dm.Respond(&answered, &d.bhs, nil)
	d.dm.GetData(&pending, bufs, 0)
	_ = d.dm.Flush()
	_ = far.Close()
	evs := make([]iscsi.Event, 4)
	n, err := d.dm.Wait(evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, &answered, evs[0].Transfer)
	_, err = d.dm.Wait(evs, time0)
	require.Error(t, err)
	d.dm.Abort(&pending)
	d.dm.Respond(&later, &d.bhs, nil)
	d.dm.PutData(&later, bufs, 0)
	n, _ = d.dm.Wait(evs, time0)
	require.Equal(t, 2, n)
	assert.Equal(t, &pending, evs[0].Transfer)
	assert.Equal(t, &later, evs[1].Transfer)
	_, again := d.dm.Wait(evs, time0)
	assert.Equal(t, err, again)
	require.NoError(t, d.dm.Close())
}
