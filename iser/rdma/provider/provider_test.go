package provider

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// named is a provider that serves, or says why not.
type named struct {
	*fabric.Fabric
	name string
	err  error
}

func (n named) Name() string { return n.name }

func (n named) Listen(a netip.AddrPort) (rdma.Listener, error) {
	if n.err != nil {
		return nil, n.err
	}
	return n.Fabric.Listen(a)
}

func (n named) Resolve(ctx context.Context, a netip.AddrPort) (rdma.Endpoint, error) {
	if n.err != nil {
		return nil, n.err
	}
	return n.Fabric.Resolve(ctx, a)
}

var addr = netip.MustParseAddrPort("127.0.0.1:3260")

func TestTheFirstThatServesIsTaken(t *testing.T) {
	noDevice := errors.New("the address is on no RDMA device")
	f := fabric.New(fabric.Options{})
	rows := []struct {
		verbs error
		want  string
	}{{nil, Verbs}, {noDevice, RoCE}}
	for _, r := range rows {
		p := &Provider{list: []rdma.Provider{named{f, Verbs, r.verbs}, named{f, RoCE, nil}}}
		assert.Empty(t, p.Used())
		l, err := p.Listen(addr)
		require.NoError(t, err)
		assert.Equal(t, r.want, p.Used())
		e, err := p.Resolve(t.Context(), addr)
		require.NoError(t, err)
		require.NoError(t, e.Close())
		require.NoError(t, l.Close())
	}
}

func TestWhereNoneServesEachSaysWhy(t *testing.T) {
	v, r, missing := errors.New("v"), errors.New("r"), errors.New("m")
	p := &Provider{missing: missing, list: []rdma.Provider{named{nil, Verbs, v}, named{nil, RoCE, r}}}
	_, err := p.Listen(addr)
	assert.ErrorIs(t, err, v)
	assert.ErrorIs(t, err, r)
	assert.ErrorIs(t, err, missing)
	assert.Empty(t, p.Used())
}

func TestRoCEIsOpenedWithoutLookingForDevices(t *testing.T) {
	p, err := Open(RoCE, roce.Options{})
	require.NoError(t, err)
	assert.Len(t, p.list, 1)
	assert.NoError(t, p.missing)
	assert.Equal(t, RoCE, p.Name())
	assert.Same(t, p.list[0], p.RoCE())
	assert.Nil(t, (&Provider{list: []rdma.Provider{named{nil, Verbs, nil}}}).RoCE())
	require.NoError(t, p.Close())
}
