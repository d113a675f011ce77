package iser

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pair is our target and our initiator, connected.
type pair struct {
	f   *fabric.Fabric
	tap *tap
	lis iscsi.Listener
	tgt *target
	ini *initiator
}

func newPair(t testing.TB, o fabric.Options, tc TargetConfig, ic InitiatorConfig) *pair {
	p := &pair{tap: &tap{}}
	o.TwoDevices = true
	p.f = fabric.New(o)
	lis, err := Listen(p.f, portal, tc)
	require.NoError(t, err)
	p.lis = lis
	t.Cleanup(func() {
		require.NoError(t, lis.Close())
		assert.Zero(t, p.f.Gauges(), "something was left open")
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type dialed struct {
		dm  iscsi.InitiatorDatamover
		err error
	}
	done := make(chan dialed, 1)
	go func() {
		dm, err := (&Dialer{Provider: p.f, Config: ic}).Dial(ctx, portal.String())
		done <- dialed{dm, err}
	}()
	p.tgt = accept(t, lis)
	d := <-done
	require.NoError(t, d.err)
	p.ini = d.dm.(*initiator)
	t.Cleanup(func() { require.NoError(t, p.ini.Close()) })
	return p
}

func (p *pair) enable(t testing.TB, params *iscsi.Params) *iscsi.Sequence {
	require.NoError(t, p.tgt.Enable(params, &iscsi.Sequence{}))
	require.NoError(t, p.ini.Prepare(params))
	seq := &iscsi.Sequence{StatSN: 77}
	require.NoError(t, p.ini.Enable(params, seq))
	return seq
}

// ramTarget is the smallest engine that serves reads and writes of a byte array: the CDB's first four bytes
// are the place. It checks what a datamover promises.
type ramTarget struct {
	t     testing.TB
	dm    iscsi.TargetDatamover
	p     *iscsi.Params
	store []byte
	tasks map[uint32]*ramTask
	all   []*ramTask
	free  []*ramTask
	live  int
	bhs   [iscsi.BHSSize]byte
	copy  bool // use a buffer of its own for every transfer: not registered
}

type ramTask struct {
	iscsi.Transfer
	off   uint32
	buf   []byte
	bufs  [][]byte
	out   uint32 // bytes of unsolicited data here
	write bool
	tag   uint32
}

// run serves until the connection ends.
func (r *ramTarget) run() error {
	evs := make([]iscsi.Event, 32)
	for {
		n, err := r.dm.Wait(evs, time.Time{})
		for i := range evs[:n] {
			r.handle(&evs[i])
		}
		if err == nil {
			err = r.dm.Flush()
		}
		if err != nil {
			return err
		}
	}
}

func (r *ramTarget) handle(ev *iscsi.Event) {
	switch ev.Kind {
	case iscsi.EventGot:
		r.finish(r.tasks[ev.Transfer.ITT])
	case iscsi.EventReleased:
		r.free = append(r.free, r.all[ev.Transfer.Tag])
		r.live--
	case iscsi.EventPDU:
		switch iscsi.OpcodeOf(ev.BHS) {
		case iscsi.OpSCSICommand:
			r.command(ev)
		case iscsi.OpDataOut:
			r.dataOut(ev)
		}
	}
}

func (r *ramTarget) command(ev *iscsi.Event) {
	var c iscsi.SCSICommand
	if err := c.Parse(ev.BHS); err != nil {
		r.t.Fatal(err)
	}
	var k *ramTask
	if n := len(r.free); n > 0 {
		k, r.free = r.free[n-1], r.free[:n-1]
	} else {
		k = &ramTask{bufs: make([][]byte, 0, 64), tag: uint32(len(r.all))}
		r.all = append(r.all, k)
	}
	k.Transfer = iscsi.Transfer{Tag: k.tag, ITT: c.ITT, EDTL: c.EDTL, LUN: c.LUN, Remote: ev.Remote}
	k.off, k.out, k.write = binary.BigEndian.Uint32(c.CDB[:]), 0, c.Write
	r.tasks[c.ITT] = k
	r.live++
	if r.copy {
		k.buf = make([]byte, c.EDTL)
	} else {
		k.buf = r.store[k.off:][:c.EDTL:c.EDTL]
	}
	k.bufs = appendSplit(k.bufs[:0], k.buf, 20000)
	if !c.Write {
		if r.copy {
			copy(k.buf, r.store[k.off:])
		}
		if !r.dm.CanPut(&k.Transfer) {
			r.t.Fatal("a read without memory")
		}
		r.dm.PutData(&k.Transfer, k.bufs, 0)
		r.respond(k)
		return
	}
	k.Unsolicited = r.p.Announced(c.EDTL, uint32(len(ev.Data)), c.Final)
	k.out = uint32(copy(k.buf, ev.Data))
	r.fetch(k)
}

func (r *ramTarget) dataOut(ev *iscsi.Event) {
	var d iscsi.DataOut
	require.NoError(r.t, d.Parse(ev.BHS))
	k := r.tasks[d.ITT]
	require.Equal(r.t, k.out, d.Offset)
	require.EqualValues(r.t, iscsi.ReservedTag, d.TTT)
	require.Equal(r.t, d.Final, d.Offset+d.DataLength == k.Unsolicited)
	k.out += uint32(copy(k.buf[d.Offset:], ev.Data))
	r.fetch(k)
}

func (r *ramTarget) fetch(k *ramTask) {
	switch {
	case k.out < k.Unsolicited:
	case k.Unsolicited == k.EDTL:
		r.finish(k)
	default:
		if !r.dm.CanGet(&k.Transfer) {
			r.t.Fatal("a write without memory")
		}
		k.bufs = appendSplit(k.bufs[:0], k.buf[k.Unsolicited:], 33333)
		r.dm.GetData(&k.Transfer, k.bufs, k.Unsolicited)
	}
}

func (r *ramTarget) finish(k *ramTask) {
	if r.copy {
		copy(r.store[k.off:], k.buf)
	}
	r.respond(k)
}

func (r *ramTarget) respond(k *ramTask) {
	delete(r.tasks, k.ITT)
	resp := iscsi.SCSIResponse{ITT: k.ITT}
	resp.Put(&r.bhs)
	r.dm.Respond(&k.Transfer, &r.bhs, nil)
}

func appendSplit(dst [][]byte, b []byte, n int) [][]byte {
	for len(b) > 0 {
		m := min(n, len(b))
		dst = append(dst, b[:m:m])
		b = b[m:]
	}
	return dst
}

// A user issues random reads and writes of its own part of the store and checks what it reads.
type user struct {
	iscsi.Transfer
	buf    []byte
	off    uint32
	shadow []byte
	base   uint32
	state  int // responses and releases still to come
	write  bool
	left   int
}

func (u *user) start(rng *rand.Rand, dm iscsi.InitiatorDatamover, itt uint32, longest int) {
	n := 1 + rng.IntN(longest)
	if rng.IntN(3) == 0 {
		n = 1 + rng.IntN(min(5000, longest))
	}
	u.off = uint32(rng.IntN(len(u.shadow) - n + 1))
	u.write = rng.IntN(2) == 0
	u.Transfer = iscsi.Transfer{Tag: u.Tag, ITT: itt, EDTL: uint32(n)}
	cmd := iscsi.SCSICommand{Read: !u.write, Write: u.write, ITT: itt, EDTL: uint32(n), Attr: iscsi.AttrSimple}
	binary.BigEndian.PutUint32(cmd.CDB[:], u.base+u.off)
	var bhs [iscsi.BHSSize]byte
	cmd.Put(&bhs)
	b := u.buf[:n]
	if u.write {
		pattern(b, rng.Uint32())
		copy(u.shadow[u.off:], b)
		u.Out = split(b, 1+rng.IntN(n))
	} else {
		for i := range b {
			b[i] = 0xee
		}
		u.In = split(b, 1+rng.IntN(n))
	}
	u.state = 2
	dm.SendCommand(&u.Transfer, &bhs, nil)
}

// mixed runs users against a RAM target until each has done its count of I/Os.
func mixed(t testing.TB, p *pair, params *iscsi.Params, seed uint64, users, each, longest int, registered bool) {
	p.enable(t, params)
	const area = 300000
	store := make([]byte, users*area)
	if registered {
		require.NoError(t, p.lis.Register(store))
	}
	ram := &ramTarget{t: t, dm: p.tgt, p: params, store: store, tasks: map[uint32]*ramTask{}, copy: !registered}
	var wg sync.WaitGroup
	var ended error
	wg.Go(func() { ended = ram.run() })
	rng := rand.New(rand.NewPCG(seed, 1))
	us := make([]*user, users)
	byITT := map[uint32]*user{}
	itt := uint32(0x1000)
	for i := range us {
		us[i] = &user{buf: make([]byte, longest), shadow: make([]byte, area), base: uint32(i * area), left: each}
		us[i].Tag = uint32(i)
		itt++
		us[i].start(rng, p.ini, itt, longest)
		byITT[itt] = us[i]
	}
	evs := make([]iscsi.Event, 16)
	deadline := time.Now().Add(60 * time.Second)
	for running := users; running > 0; {
		require.NoError(t, p.ini.Flush())
		n, err := p.ini.Wait(evs, deadline)
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline), "seed %d: stuck with %d users", seed, running)
		for _, ev := range evs[:n] {
			require.NotNil(t, ev.Transfer)
			u := us[ev.Transfer.Tag]
			if ev.Kind == iscsi.EventPDU {
				require.Equal(t, u.ITT, iscsi.ITTOf(ev.BHS))
				if !u.write {
					require.Equal(t, u.EDTL, p.ini.Received(&u.Transfer))
					if !bytes.Equal(u.shadow[u.off:][:u.EDTL], u.buf[:u.EDTL]) {
						t.Fatalf("seed %d: read of %d bytes at %d is wrong", seed, u.EDTL, u.off)
					}
				}
			}
			if u.state--; u.state > 0 {
				continue
			}
			if u.left--; u.left == 0 {
				running--
				continue
			}
			itt++
			u.start(rng, p.ini, itt, longest)
		}
	}
	require.NoError(t, p.ini.Close())
	wg.Wait()
	require.Error(t, ended)
	for i, u := range us {
		assert.True(t, bytes.Equal(u.shadow, store[i*area:][:area]), "area of user %d", i)
	}
}

func TestRandomMixedIO(t *testing.T) {
	for _, r2t := range []bool{true, false} {
		for _, partial := range []bool{true, false} {
			for _, registered := range []bool{true, false} {
				name := fmt.Sprintf("InitialR2T=%v,partial=%v,registered=%v", r2t, partial, registered)
				t.Run(name, func(t *testing.T) {
					for seed := range uint64(2) {
						p := newPair(t, fabric.Options{Seed: seed, RNRFatal: true}, TargetConfig{Window: 16},
							InitiatorConfig{QueueDepth: 16, PartialImmediate: partial, PoolBytes: 2 << 20, NoInvalidate: seed == 1})
						params := normalParams()
						params.InitialR2T = r2t
						params.FirstBurstLength = 40000
						mixed(t, p, params, seed, 16, 6, 150000, registered)
					}
				})
			}
		}
	}
}

func TestPeerThatClosesIsEOF(t *testing.T) {
	p := newPair(t, fabric.Options{}, TargetConfig{}, InitiatorConfig{})
	require.NoError(t, p.ini.Close())
	_, err := p.ini.Wait(make([]iscsi.Event, 4), time.Time{})
	require.ErrorIs(t, err, net.ErrClosed)
	l := loop{t: t, dm: p.tgt}
	_, err = l.fails()
	require.False(t, errors.Is(err, net.ErrClosed))
	require.ErrorContains(t, err, "closed by the peer")
}
