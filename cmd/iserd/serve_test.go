package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func config(t *testing.T, portal string, stores, targets string) *conf.Config {
	c, err := conf.Parse("test.yaml", fmt.Appendf(nil, "version: 1\nportals: [%s]\nbackstores: {%s}\ntargets: {%s}\n", portal, stores, targets))
	require.NoError(t, err)
	return c
}

const (
	ramStore  = "ram: {type: ram, size: 4MiB}"
	ramTarget = `"iqn.2026-01.example:ram": {luns: {0: ram}}`
	anyPort   = `{listen: "127.0.0.1:0"}`
)

func noRDMA(conf.Portal) (rdma.Provider, error) {
	return nil, fmt.Errorf("no device: %w", rdma.ErrUnavailable)
}

func openDisk(t *testing.T, ctx context.Context, tr initiator.Transport, addr string) (*initiator.Session, *initiator.Disk) {
	s, err := initiator.Open(ctx, tr, addr, "iqn.2026-01.example:ram", initiator.Options{InitiatorName: "iqn.2026-01.example:test"})
	require.NoError(t, err)
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	return s, d
}

// TestOneAddressServesBoth: what goes in by iSER comes out by TCP, from the same address.
func TestOneAddressServesBoth(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f := fabric.New(fabric.Options{})
	log, _ := test.NewNullLogger()
	s, err := start(config(t, anyPort, ramStore, ramTarget), log, func(conf.Portal) (rdma.Provider, error) { return f, nil }, nil)
	require.NoError(t, err)
	addr := s.served()[0].Addr().String()
	require.Equal(t, "iser://"+addr, s.url())

	si, di := openDisk(t, ctx, &iser.Dialer{Provider: f}, addr)
	st, dt := openDisk(t, ctx, &tcp.Dialer{}, addr)
	want := bytes.Repeat([]byte("0123456789abcdef"), 8192) // 128 KiB
	require.NoError(t, di.WriteAt(ctx, want, 1<<20))
	got := make([]byte, len(want))
	require.NoError(t, dt.ReadAt(ctx, got, 1<<20))
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, si.Close())
	require.NoError(t, st.Close())
	require.NoError(t, s.stop())
}

// TestTransferLimitIsWhatTheDiskSays: limits.max_transfer is both what VPD page B0h says (SBC-3, MAXIMUM TRANSFER
// LENGTH) and what is taken, not one block more.
func TestTransferLimitIsWhatTheDiskSays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	log, _ := test.NewNullLogger()
	c := config(t, anyPort, ramStore, ramTarget)
	c.Limits.MaxTransfer = 128 << 10
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	ses, _ := openDisk(t, ctx, &tcp.Dialer{}, s.served()[0].Addr().String())
	b0, err := ses.Inquiry(ctx, 0, true, 0xb0)
	require.NoError(t, err)
	blocks := binary.BigEndian.Uint32(b0[8:])
	require.EqualValues(t, 256, blocks)
	for more, want := range []bool{true, false} {
		n := blocks + uint32(more)
		cdb := []byte{0x28, 0, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0}
		res, err := ses.Do(ctx, initiator.Command{CDB: cdb, In: make([]byte, n*512)})
		require.NoError(t, err)
		assert.Equal(t, want, res.Err() == nil, "READ(10) of %d blocks: %v", n, res.Err())
	}
	require.NoError(t, ses.Close())
	require.NoError(t, s.stop())
}

// TestStopWithASession: a session that is still there does not keep the daemon from stopping in order.
func TestStopWithASession(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	log, _ := test.NewNullLogger()
	s, err := start(config(t, anyPort, ramStore, ramTarget), log, noRDMA, nil)
	require.NoError(t, err)
	ses, d := openDisk(t, ctx, &tcp.Dialer{}, s.served()[0].Addr().String())
	require.NoError(t, d.WriteAt(ctx, make([]byte, 4096), 0))
	require.NoError(t, s.stop())
	require.Error(t, d.WriteAt(ctx, make([]byte, 4096), 0))
	_ = ses.Close() // the target has ended it
}

func TestWithoutRDMA(t *testing.T) {
	log, hook := test.NewNullLogger()
	s, err := start(config(t, anyPort, ramStore, ramTarget), log, noRDMA, nil)
	require.NoError(t, err)
	require.Equal(t, "iscsi://"+s.served()[0].Addr().String(), s.url())
	require.NoError(t, s.stop())
	var said bool
	for _, e := range hook.AllEntries() {
		said = said || e.Message == "portal 127.0.0.1:0: TCP only, no iSER here" && fmt.Sprint(e.Data["err"]) == "no device: RDMA provider unavailable"
	}
	require.True(t, said, "what is missing is said plainly")

	_, err = start(config(t, `{listen: "127.0.0.1:0", provider: verbs}`, ramStore, ramTarget), log, noRDMA, nil)
	require.ErrorIs(t, err, rdma.ErrUnavailable)
	require.EqualError(t, err, "portal 127.0.0.1:0: iSER: no device: RDMA provider unavailable")

	tcpOnly := func(conf.Portal) (rdma.Provider, error) { panic("opened although nobody wants it") }
	s, err = start(config(t, `{listen: "127.0.0.1:0", provider: tcp}`, ramStore, ramTarget), log, tcpOnly, nil)
	require.NoError(t, err)
	require.NoError(t, s.stop())
}

// TestNothingIsHalfStarted: after each failure the good store is closed and the good address is free.
func TestNothingIsHalfStarted(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	good := free.Addr().String()
	require.NoError(t, free.Close())

	dir := t.TempDir()
	img := filepath.Join(dir, "good.img")
	file := fmt.Sprintf("good: {type: file, path: %s, size: 1MiB}", img)
	odd := filepath.Join(dir, "odd.img")
	require.NoError(t, os.WriteFile(odd, make([]byte, 512), 0o600))
	portal := fmt.Sprintf("{listen: %q, provider: tcp}", good)
	for name, c := range map[string]*conf.Config{
		"missing store": config(t, portal, file+", bad: {type: file, path: "+dir+"/no/a.img}", `"iqn.2026-01.example:a": {luns: {0: good, 1: bad}}`),
		"busy address":  config(t, portal+fmt.Sprintf(", {listen: %q}", busy.Addr()), file, `"iqn.2026-01.example:a": {luns: {0: good}}`),
		"no device":     config(t, fmt.Sprintf("{listen: %q, provider: verbs}", good), file, `"iqn.2026-01.example:a": {luns: {0: good}}`),
		"small store":   config(t, portal, file+", odd: {type: file, path: "+odd+"}", `"iqn.2026-01.example:a": {luns: {0: good, 1: {store: odd, block_size: 4096}}}`),
	} {
		log, hook := test.NewNullLogger()
		_, err := start(c, log, noRDMA, nil)
		require.Error(t, err, name)
		for _, e := range hook.AllEntries() {
			assert.NotContains(t, e.Message, "listening", name)
		}
		s, err := backstore.Open("file", backstore.Options{"path": img})
		require.NoError(t, err, "%s: the store was closed", name)
		require.NoError(t, s.Close())
		l, err := net.Listen("tcp", good)
		require.NoError(t, err, "%s: the address is free", name)
		require.NoError(t, l.Close())
	}
}

// A stuckStore does not finish closing before it is freed.
type stuckStore struct {
	backstore.Store
	free chan struct{}
}

func (s stuckStore) Close() error {
	<-s.free
	return nil
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	stuck := stuckStore{free: make(chan struct{})}
	defer close(stuck.free)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	log, _ := test.NewNullLogger()
	s := &service{log: log, order: []*openedStore{{Store: stuck}}}
	err := (&app{signals: signals}).stop(&manager{s: s}, nil, &tracer{})
	require.EqualError(t, err, "terminated again: ended at once")
}

// A badStore cannot flush.
type badStore struct{ backstore.Store }

func (badStore) Close() error { return syscall.EIO }

func TestFailedCloseIsTold(t *testing.T) {
	log, _ := test.NewNullLogger()
	s := &service{log: log, order: []*openedStore{
		{Store: badStore{}, conf: conf.Backstore{Name: "a"}}, {Store: badStore{}, conf: conf.Backstore{Name: "b"}},
	}}
	err := s.stop()
	require.EqualError(t, err, "backstore b: input/output error\nbackstore a: input/output error")
	require.ErrorIs(t, err, syscall.EIO)
}

func TestExitCodes(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("version: 2\n"), 0o600))
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"version"}, exitOK},
		{[]string{"--help"}, exitOK},
		{[]string{"check", "../../docs/iserd.yaml"}, exitOK},
		{[]string{"check", bad}, exitOther},
		{[]string{"check"}, exitUsage},
		{[]string{"check", "a", "b"}, exitUsage},
		{[]string{"frobnicate"}, exitUsage},
		{[]string{"--frobnicate"}, exitUsage},
		{[]string{"--log", "loud"}, exitUsage},
		{[]string{"--ram", "1GB"}, exitUsage},
		{[]string{"--ram", "1GiB", "--file", "x"}, exitUsage},
		{[]string{"--config", bad, "--iqn", "iqn.2026-01.example:a"}, exitUsage},
		{[]string{"--iqn", "bob"}, exitUsage},
		{[]string{"--initial-r2t", "maybe"}, exitUsage},
		{[]string{"--immediate-data", "maybe"}, exitUsage},
		{[]string{"--listen", "localhost"}, exitUsage},
		{[]string{"--listen", "192.0.2.1"}, exitUsage},
		{[]string{"--provider", "pigeon"}, exitUsage},
		{[]string{"--config", bad}, exitOther},
		{[]string{"--file", "/no/such/file"}, exitOther},
		{[]string{"--ram", "1MiB", "--listen", busy.Addr().String()}, exitInUse},
	} {
		var errOut bytes.Buffer
		code := run(c.args, io.Discard, &errOut, nil)
		assert.Equal(t, c.want, code, "%q: %s", c.args, errOut.String())
		if c.want != exitOK {
			assert.Contains(t, errOut.String(), "iserd: ", "%q", c.args)
		}
	}
}

func TestFlags(t *testing.T) {
	f := flags{file: "/srv/a:b.img:2GiB", listen: "::1", provider: "tcp", iqn: "IQN.2026-01.example:A", initialR2T: "yes", immediateData: "no"}
	c, err := f.configuration()
	require.NoError(t, err)
	assert.Equal(t, []conf.Backstore{{Name: "file", Type: "file", Options: backstore.Options{"path": "/srv/a:b.img", "size": "2GiB"}}}, c.Backstores)
	assert.Equal(t, []conf.Portal{{Listen: netip.MustParseAddrPort("[::1]:3260"), Provider: "tcp", Group: 1}}, c.Portals)
	target := c.Targets[0]
	assert.Equal(t, "iqn.2026-01.example:a", string(target.Name))
	assert.True(t, *target.Negotiate.InitialR2T)
	assert.False(t, target.Negotiate.ImmediateData)

	c, err = (&flags{}).configuration()
	require.NoError(t, err)
	assert.Equal(t, "iqn.2026-01.local.iserd:ram", string(c.Targets[0].Name))
	assert.Equal(t, "1GiB", c.Backstores[0].Options["size"])
	assert.Nil(t, c.Targets[0].Negotiate.InitialR2T)
	assert.Equal(t, conf.Default().Portals, c.Portals)

	assert.Equal(t, backstore.Options{"path": "a:b"}, fileOptions("a:b"))
	c, err = (&flags{listen: "192.0.2.1", insecure: true}).configuration()
	require.NoError(t, err)
	assert.True(t, c.Insecure)
}

// TestURL: an address that is everywhere is nothing to connect to.
func TestURL(t *testing.T) {
	c := config(t, anyPort, ramStore, ramTarget)
	c.Insecure, c.Portals[0].Listen = true, netip.MustParseAddrPort("0.0.0.0:0")
	log, _ := test.NewNullLogger()
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	require.Regexp(t, `^iscsi://localhost:\d+$`, s.url())
	require.NoError(t, s.stop())
}

func TestSystemdMayBeAbsent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	log, hook := test.NewNullLogger()
	(&service{log: log}).notify("READY=1")
	require.Equal(t, logrus.WarnLevel, hook.LastEntry().Level)
	require.True(t, errors.Is(hook.LastEntry().Data["err"].(error), syscall.ENOENT))
}

// One store served twice is two disks to initiators: the operator is told, unless nobody can write.
func TestStoreServedTwiceIsToldOf(t *testing.T) {
	log, hook := test.NewNullLogger()
	s, err := start(config(t, anyPort, ramStore,
		`"iqn.2026-01.example:two": {luns: {0: ram}}, "iqn.2026-01.example:ram": {luns: {3: ram}}`), log, noRDMA, nil)
	require.NoError(t, err)
	require.NoError(t, s.stop())
	var warned []string
	for _, e := range hook.AllEntries() {
		if e.Level == logrus.WarnLevel && strings.Contains(e.Message, "two disks") {
			warned = append(warned, e.Message)
		}
	}
	require.Len(t, warned, 1)
	assert.Contains(t, warned[0], "backstore ram: LUN ")
	assert.Contains(t, warned[0], "LUN 3 of iqn.2026-01.example:ram")
	assert.Contains(t, warned[0], "LUN 0 of iqn.2026-01.example:two")
}
