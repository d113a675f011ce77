package initiator_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func credentials(t testing.TB, user, mutual string, algorithms ...chap.Algorithm) *chap.Credentials {
	c := &chap.Credentials{User: user, Algorithms: algorithms}
	var err error
	c.Secret, err = chap.NewSecret("secret of " + user + ", long")
	require.NoError(t, err)
	if mutual != "" {
		c.MutualUser = mutual
		c.MutualSecret, err = chap.NewSecret("secret of " + mutual + ", long")
		require.NoError(t, err)
	}
	return c
}

// TestCHAP runs both ends against each other, over TCP and over iSER on a fabric where a login PDU without
// a receive posted for it is fatal (SE-19, SE-21).
func TestCHAP(t *testing.T) {
	strict := fabric.New(fabric.Options{RNRFatal: true})
	list := networks()[:1]
	list = append(list, network{name: "iser", dial: &iser.Dialer{Provider: strict}, listen: func(int) (iscsi.Listener, error) {
		return iser.Listen(strict, netip.MustParseAddrPort("127.0.0.1:3260"), iser.TargetConfig{})
	}})
	for _, n := range list {
		t.Run(n.name, func(t *testing.T) { checkCHAP(t, n) })
	}
}

func checkCHAP(t *testing.T, n network) {
	pool, err := arena.New(16 * arena.ChunkSize)
	require.NoError(t, err)
	s := target.New(target.Config{Pool: pool, Discovery: credentials(t, "finder", "list")})
	_, err = s.AddTarget(target.TargetConfig{
		Name: diskName, Device: scsi.NewDevice(scsi.DeviceConfig{Name: diskName}),
		Negotiate: iscsi.DefaultConfig(), Auth: credentials(t, "host", "disk"),
	})
	require.NoError(t, err)
	l, err := n.listen(0)
	require.NoError(t, err)
	require.NoError(t, s.Serve(l, target.PortalConfig{}))
	t.Cleanup(func() {
		assert.NoError(t, s.Shutdown(context.Background()))
		assert.NoError(t, pool.Close())
	})
	address := l.Addr().String()

	for _, r := range []struct {
		name     string
		c        *chap.Credentials
		refused  bool // by the target
		doubtful bool // to us
	}{
		{name: "md5", c: credentials(t, "host", "", chap.MD5)},
		{name: "sha1", c: credentials(t, "host", "", chap.SHA1)},
		{name: "sha256", c: credentials(t, "host", "disk", chap.SHA256)},
		{name: "sha3", c: credentials(t, "host", "disk", chap.SHA3256)},
		{name: "any", c: credentials(t, "host", "disk")},
		{name: "nothing", refused: true},
		{name: "wrong user", c: credentials(t, "hosT", "disk"), refused: true},
		{name: "another's", c: credentials(t, "finder", "list"), refused: true},
		{name: "wrong target", c: credentials(t, "host", "disc"), doubtful: true},
	} {
		o := options(t)
		o.CHAP = r.c
		ses, err := initiator.Open(context.Background(), n.dial, address, diskName, o)
		var le *iscsi.LoginError
		switch {
		case r.refused:
			require.ErrorAs(t, err, &le, r.name)
			assert.Equal(t, iscsi.LoginAuthFailed, le.Status, r.name)
		case r.doubtful:
			require.ErrorIs(t, err, initiator.ErrAuth, r.name)
		default:
			require.NoError(t, err, r.name)
			_, err = ses.Ping(context.Background())
			require.NoError(t, err, r.name)
			require.NoError(t, ses.Close())
		}
	}

	o := options(t)
	_, err = initiator.Discover(context.Background(), n.dial, address, o)
	var le *iscsi.LoginError
	require.ErrorAs(t, err, &le)
	assert.Equal(t, iscsi.LoginAuthFailed, le.Status)
	o.CHAP = credentials(t, "finder", "list")
	found, err := initiator.Discover(context.Background(), n.dial, address, o)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, diskName, found[0].Name)
}
