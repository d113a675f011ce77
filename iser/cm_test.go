package iser

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func TestPrivateDataIsParsed(t *testing.T) {
	for _, c := range []struct {
		private []byte
		want    bool
	}{
		{[]byte{0x80, 0, 0, 0}, true},
		{[]byte{0x80}, true},
		{[]byte{0xbf, 1, 2, 3}, true}, // other bits are ignored
		{[]byte{0xc0, 0, 0, 0}, false},
		{[]byte{0x40, 0, 0, 0}, false},
		{[]byte{0, 0, 0, 0}, false}, // silence on InfiniBand
		{nil, false},                // silence on iWARP
		{bytes.Repeat([]byte{0xff}, 56), false},
	} {
		assert.Equal(t, c.want, mayInvalidate(c.private), "% x", c.private)
	}
}

func TestReplyAnswersTheRequestsFlags(t *testing.T) {
	noInv := fabric.DefaultLimits()
	noInv.SendInvalidate = false
	for name, c := range map[string]struct {
		request []byte
		options fabric.Options
		config  TargetConfig
		reply   byte
	}{
		"agreed":               {[]byte{0x80, 0, 0, 0}, fabric.Options{}, TargetConfig{}, 0x80},
		"refused by initiator": {[]byte{0xc0, 0, 0, 0}, fabric.Options{}, TargetConfig{}, 0xc0},
		"silent":               {nil, fabric.Options{}, TargetConfig{}, 0xc0},
		"silent, iWARP":        {nil, fabric.Options{ExactPrivateData: true}, TargetConfig{}, 0xc0},
		"garbage":              {bytes.Repeat([]byte{0xff}, 56), fabric.Options{}, TargetConfig{}, 0xc0},
		"device cannot":        {[]byte{0x80, 0, 0, 0}, fabric.Options{Limits: &noInv}, TargetConfig{}, 0xc0},
		"switched off":         {[]byte{0x80, 0, 0, 0}, fabric.Options{}, TargetConfig{NoInvalidate: true}, 0xc0},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newTarget(t, c.options, c.config, rdma.ConnParam{PrivateData: c.request, ResponderResources: 4})
			got := p.ep.Peer().PrivateData
			require.GreaterOrEqual(t, len(got), 4)
			assert.Equal(t, []byte{c.reply, 0, 0, 0}, got[:4])
			assert.Equal(t, c.reply == 0x80, b.tgt.invalidate)
		})
	}
}

func TestReadDepthIsTheLeastOfThree(t *testing.T) {
	for _, c := range []struct {
		peer, device uint8
		configured   int
		want         int
	}{{1, 16, 16, 1}, {4, 16, 16, 4}, {16, 16, 16, 16}, {255, 16, 16, 16}, {255, 128, 16, 16}, {255, 128, 40, 40}, {0, 16, 16, 0}} {
		assert.Equal(t, c.want, readDepth(c.peer, c.device, c.configured))
	}
	_, p := newTarget(t, fabric.Options{}, TargetConfig{ReadDepth: 8}, rdma.ConnParam{ResponderResources: 4})
	assert.EqualValues(t, 4, p.ep.Peer().ResponderResources)
	_, p = newTarget(t, fabric.Options{}, TargetConfig{ReadDepth: 3}, rdma.ConnParam{ResponderResources: 4})
	assert.EqualValues(t, 3, p.ep.Peer().ResponderResources)
}

// rejected connects and expects a reject with reason 28.
func rejected(t *testing.T, f *fabric.Fabric, lis iscsi.Listener, c rdma.ConnParam) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ep, err := f.Resolve(ctx, portal)
	require.NoError(t, err)
	p := newPeer(t, ep)
	done := make(chan error, 1)
	go func() { done <- p.ep.Connect(ctx, c) }()
	_, why := lis.Accept(ctx)
	require.Error(t, why)
	var r *rdma.RejectedError
	require.ErrorAs(t, <-done, &r)
	assert.Equal(t, rdma.ReasonConsumer, r.Reason)
	return why
}

func TestInitiatorThatServesNoReadsIsRejected(t *testing.T) {
	f := fabric.New(fabric.Options{})
	lis, err := Listen(f, portal, TargetConfig{})
	require.NoError(t, err)
	why := rejected(t, f, lis, rdma.ConnParam{PrivateData: []byte{0x80, 0, 0, 0}})
	require.ErrorContains(t, why, "serves no RDMA Reads")
	p := connectPeer(t, f, agreed, func() { accept(t, lis) }) // a later attempt works
	p.close()
	require.NoError(t, lis.Close())
}

func TestConnectionsBeforeLoginAreBounded(t *testing.T) {
	f := fabric.New(fabric.Options{})
	l, err := Listen(f, portal, TargetConfig{Window: 1})
	require.NoError(t, err)
	l.(*listener).maxPending = 2
	var first *target
	connectPeer(t, f, agreed, func() { first = accept(t, l) })
	connectPeer(t, f, agreed, func() { accept(t, l) })
	require.ErrorIs(t, rejected(t, f, l, agreed), errTooManyLogins)
	require.NoError(t, first.Enable(normalParams(), nil))
	connectPeer(t, f, agreed, func() { first = accept(t, l) }) // one has logged in
	require.ErrorIs(t, rejected(t, f, l, agreed), errTooManyLogins)
	require.NoError(t, first.Close())
	connectPeer(t, f, agreed, func() { accept(t, l) }) // one is gone
	require.NoError(t, l.Close())
}

func TestListenerSaysItIsClosed(t *testing.T) {
	f := fabric.New(fabric.Options{})
	l, err := Listen(f, portal, TargetConfig{})
	require.NoError(t, err)
	assert.Equal(t, "iser", l.Transport())
	assert.Equal(t, portal.String(), l.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}

// TestRequestSaysWhatItsKeysCanDo is conformance 131: "no" to Send with Invalidate where keys are permanent.
func TestRequestSaysWhatItsKeysCanDo(t *testing.T) {
	none, hazard := fabric.DefaultLimits(), fabric.DefaultLimits()
	none.Windows, hazard.WindowHazard = false, true
	few := fabric.Options{MaxWindows: 100}
	for _, c := range []struct {
		name   string
		device fabric.Options
		config InitiatorConfig
		want   byte
	}{
		{"windows", fabric.Options{}, InitiatorConfig{}, 0x80},
		{"no windows", fabric.Options{Limits: &none}, InitiatorConfig{}, 0xc0},
		{"windows that are not safe", fabric.Options{Limits: &hazard}, InitiatorConfig{}, 0xc0},
		{"fewer windows than commands", few, InitiatorConfig{}, 0xc0},
		{"enough windows", few, InitiatorConfig{QueueDepth: 100}, 0x80},
		{"not wanted", fabric.Options{}, InitiatorConfig{NoInvalidate: true}, 0xc0},
	} {
		t.Run(c.name, func(t *testing.T) { requestSays(t, c.device, c.config, c.want) })
	}
}

func requestSays(t *testing.T, device fabric.Options, config InitiatorConfig, want byte) {
	f := fabric.New(device)
	l, err := f.Listen(portal)
	require.NoError(t, err)
	done := make(chan error, 1)
	var dm iscsi.InitiatorDatamover
	go func() {
		var err error
		dm, err = (&Dialer{Provider: f, Config: config}).Dial(context.Background(), portal.String())
		done <- err
	}()
	ep, err := l.Accept(context.Background())
	require.NoError(t, err)
	c := ep.Peer()
	assert.Equal(t, []byte{want, 0, 0, 0}, c.PrivateData[:4])
	assert.EqualValues(t, 16, c.InitiatorDepth, "what it serves")
	assert.Zero(t, c.ResponderResources)
	p := newPeer(t, ep)
	require.NoError(t, ep.Accept(rdma.ConnParam{PrivateData: []byte{0x80, 0, 0, 0}, InitiatorDepth: 1}))
	require.NoError(t, <-done)
	require.NoError(t, dm.Close())
	p.close()
	require.NoError(t, l.Close())
	assert.Zero(t, f.Gauges())
}

func TestDialFailsWithoutLeaks(t *testing.T) {
	f := fabric.New(fabric.Options{})
	d := &Dialer{Provider: f}
	assert.Equal(t, "iser", d.Name())
	_, err := d.Dial(context.Background(), portal.String())
	require.ErrorIs(t, err, rdma.ErrRejected)
	for _, address := range []string{"", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:99999"} {
		_, err := d.Dial(context.Background(), address)
		require.Error(t, err, address)
	}
	small := fabric.DefaultLimits()
	small.MaxQPDepth = 64
	f2 := fabric.New(fabric.Options{Limits: &small})
	_, err = (&Dialer{Provider: f2}).Dial(context.Background(), portal.String())
	require.ErrorContains(t, err, "too short")
	for _, c := range []InitiatorConfig{{QueueDepth: -1}, {QueueDepth: 5000}, {PoolBytes: -1}, {MaxImmediate: -1}} {
		_, err := (&Dialer{Provider: f, Config: c}).Dial(context.Background(), portal.String())
		require.Error(t, err)
	}
	assert.Zero(t, f.Gauges())
	assert.Zero(t, f2.Gauges())
}
