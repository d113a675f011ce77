package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loss is how a fake connection ends.
type loss int

const (
	keep       loss = iota
	lostBefore      // the command was sent and is never carried out
	lostAfter       // it was carried out, and its answer never comes
)

// A world is a fake unit behind connections that are lost at chosen commands. It is an initiator.Transport.
type world struct {
	unit     fakeUnit
	id       byte   // of the designator; 0: none
	group    string // of the portal
	wce      bool
	alua     *access // of the port groups; nil: TPGS is 0
	port     uint16  // the port group
	lose     func(cdb []byte) loss
	refused  error       // what Dial fails with
	down     atomic.Bool // Dial fails
	dials    atomic.Int32
	last     atomic.Pointer[fakeTarget]
	isids    []iscsi.ISID
	executed []string // operation codes that the unit has carried out, those of opening a disk left out
	quiet    bool     // do not keep executed
}

// access are the access states of port groups.
type access [8]atomic.Uint32

func (a *access) of(group uint16) AccessState { return AccessState(a[group].Load()) }

func (a *access) set(states map[int]AccessState) *access {
	for i := range a {
		a[i].Store(uint32(states[i]))
	}
	return a
}

func newWorld() *world {
	return &world{unit: fakeUnit{blocks: 4096, blockSize: 512}, id: 1, group: "1"}
}

func (w *world) Name() string { return "world" }

func (w *world) Dial(context.Context, string) (iscsi.InitiatorDatamover, error) {
	w.dials.Add(1)
	if w.down.Load() {
		return nil, errors.New("nobody there")
	}
	if w.refused != nil {
		return nil, w.refused
	}
	ft := newFakeTarget(w.execute)
	ft.group, ft.keep = w.group, w.quiet
	w.last.Store(ft)
	login := ft.onSend
	ft.onSend = func(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte) {
		if op == iscsi.OpLoginRequest {
			var req iscsi.LoginRequest
			_ = req.Parse(bhs)
			w.isids = append(w.isids, req.ISID)
		}
		login(op, bhs, data)
	}
	ft.onCmd = func(tr *iscsi.Transfer, cmd *iscsi.SCSICommand) {
		how := keep
		if w.lose != nil {
			how = w.lose(cmd.CDB[:])
		}
		if how == lostAfter {
			_, _, _ = w.execute(cmd.CDB[:], nil, nil)
		}
		if how != keep {
			ft.die(errDead)
			return
		}
		ft.command(tr, cmd)
	}
	return ft.fakeDM, nil
}

func (w *world) execute(cdb, in, out []byte) (uint8, []byte, int) {
	switch {
	case w.alua != nil && cdb[0] == opMaintenanceIn:
		b := []byte{0, 0, 0, 8 * byte(len(w.alua))}
		for i := range w.alua {
			b = append(b, byte(w.alua[i].Load()), 0x8f, 0, byte(i), 0, 0, 0, 0)
		}
		return statusGood, nil, copy(in, b)
	case w.alua != nil && cdb[0] == opMaintenanceOut:
		w.executed = append(w.executed, fmt.Sprintf("a4 %x", out))
		w.alua[out[7]].Store(uint32(out[4]))
		return statusGood, nil, len(out)
	case w.alua != nil && !w.alua.of(w.port).usable() && cdb[0] != opInquiry:
		ascq := map[AccessState]uint8{AccessStandby: 0x0b, AccessUnavailable: 0x0c, AccessTransitioning: 0x0a, AccessOffline: 0x12}[w.alua.of(w.port)]
		return statusCheckCondition, fixedSense(keyNotReady, 4, ascq), 0
	case cdb[0] == opInquiry && cdb[1] == 0:
		tpgs := byte(0)
		if w.alua != nil {
			tpgs = 0x30
		}
		return statusGood, nil, copy(in, []byte{0, 0, 5, 2, 31, tpgs, 35: 0})
	case cdb[0] == opInquiry && cdb[2] == pageIdentification && w.id != 0:
		return statusGood, nil, copy(in, []byte{
			0, pageIdentification, 0, 22, 1, 3, 0, 2, 0x30, w.id, 0, 0x14, 0, 4, 9, 9, 9, 9,
			0x51, 0x95, 0, 4, 0, 0, 0, byte(w.port),
		})
	case cdb[0] == opInquiry && cdb[2] == pageBlockLimit:
		page := make([]byte, 64)
		page[1], page[3], page[5] = pageBlockLimit, 60, 8
		binary.BigEndian.PutUint32(page[20:], 4096)
		binary.BigEndian.PutUint32(page[24:], 1)
		return statusGood, nil, copy(in, page)
	case cdb[0] == opModeSense6 && cdb[2] == 0x08:
		page := make([]byte, 24)
		page[0], page[4], page[5] = 23, 8, 18
		if w.wce {
			page[6] = 4
		}
		return statusGood, nil, copy(in, page)
	}
	switch cdb[0] {
	case opTestUnitReady, opServiceActionIn16, opModeSense6, opInquiry:
	default:
		if !w.quiet {
			w.executed = append(w.executed, fmt.Sprintf("%02x", cdb[0]))
		}
	}
	return w.unit.execute(cdb, in, out)
}

// loseOnce loses the connection with the next command of an operation code.
func (w *world) loseOnce(op byte, how loss) {
	w.lose = func(cdb []byte) loss {
		if cdb[0] != op {
			return keep
		}
		w.lose = nil
		return how
	}
}

// closed takes the error of a Close: a session that is just being lost tells why.
func closed(t *testing.T, err, lost error) {
	if !errors.Is(err, lost) {
		assert.NoError(t, err)
	}
}

func (w *world) connect(t *testing.T, o Options) (*Connection, *Disk) {
	t.Helper()
	o.PingInterval = -1
	c, err := Connect(t.Context(), w, "h:1", "iqn.2026-01.test:disk", o)
	require.NoError(t, err)
	t.Cleanup(func() { closed(t, c.Close(), errDead) })
	d, err := c.Disk(t.Context(), 0)
	require.NoError(t, err)
	return c, d
}

// TestWhatIsSentAgain is the rule of Connection, for each command and both ways to lose it.
func TestWhatIsSentAgain(t *testing.T) {
	p := make([]byte, 512)
	for name, c := range map[string]struct {
		op        byte
		run       func(context.Context, *Disk) error
		shared    bool // sent again, whoever else writes
		exclusive bool // sent again if nobody does
	}{
		"read":              {opRead10, func(ctx context.Context, d *Disk) error { return d.ReadAt(ctx, p, 0) }, true, true},
		"flush":             {opSynchronizeCache10, func(ctx context.Context, d *Disk) error { return d.Flush(ctx) }, true, true},
		"keys":              {opPersistentIn, func(ctx context.Context, d *Disk) error { _, _, err := d.ReadKeys(ctx); return err }, true, true},
		"write":             {opWrite10, func(ctx context.Context, d *Disk) error { return d.WriteAt(ctx, p, 0) }, false, true},
		"unmap":             {opUnmap, func(ctx context.Context, d *Disk) error { return d.Unmap(ctx, 0, 512) }, false, true},
		"zero":              {opWriteSame16, func(ctx context.Context, d *Disk) error { return d.WriteZeroes(ctx, 0, 512) }, false, true},
		"compare and write": {opCompareAndWrite, func(ctx context.Context, d *Disk) error { return d.CompareAndWrite(ctx, p, p, 0) }, false, false},
		"reserve":           {opPersistentOut, func(ctx context.Context, d *Disk) error { return d.Reserve(ctx, 1, WriteExclusive) }, false, false},
	} {
		for _, how := range []loss{lostBefore, lostAfter} {
			for _, exclusive := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, how, exclusive), func(t *testing.T) {
					w := newWorld()
					_, d := w.connect(t, Options{ReconnectTimeout: time.Minute, Exclusive: exclusive})
					w.loseOnce(c.op, how)
					err := c.run(t.Context(), d)
					again := c.shared || c.exclusive && exclusive
					times := 0
					if how == lostAfter {
						times++
					}
					var unknown *UnknownOutcomeError
					if again {
						assert.NoError(t, err)
						times++
					} else {
						assert.ErrorAs(t, err, &unknown)
						assert.ErrorIs(t, err, errDead)
					}
					assert.Len(t, w.executed, times, w.executed)
					require.NoError(t, d.ReadAt(t.Context(), p, 0), "on the new session")
					assert.Equal(t, int32(2), w.dials.Load())
					assert.Equal(t, w.isids[0], w.isids[1], "the old session is reinstated")
				})
			}
		}
	}
}

// TestOptionsOutliveASession is field report WP-02.
func TestOptionsOutliveASession(t *testing.T) {
	w := newWorld()
	offer := iscsi.DefaultConfig()
	offer.ImmediateData = false
	c, d := w.connect(t, Options{ReconnectTimeout: time.Minute, Negotiate: &offer})
	for range 2 {
		s, err := c.Session(t.Context())
		require.NoError(t, err)
		assert.False(t, s.Params().ImmediateData)
		w.loseOnce(opRead10, lostBefore)
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
	}
	assert.Equal(t, int32(3), w.dials.Load())
}

func TestTheOldestUnflushedWriteCounts(t *testing.T) {
	d := &Disk{c: &Connection{}}
	for _, number := range []uint64{5, 7, 3, 4} {
		d.acknowledged(&Session{number: number})
	}
	assert.Equal(t, uint64(3), d.dirty[0].Load())
}

func TestWithoutReconnectTimeoutALossIsTheEnd(t *testing.T) {
	w := newWorld()
	_, d := w.connect(t, Options{Exclusive: true})
	w.loseOnce(opRead10, lostBefore)
	err := d.ReadAt(t.Context(), make([]byte, 512), 0)
	assert.ErrorIs(t, err, errDead)
	assert.ErrorIs(t, d.Flush(t.Context()), errDead)
	assert.Equal(t, int32(1), w.dials.Load())
}

// TestACommandThatWasNeverSentIsSent: a session that was already lost costs nobody anything.
func TestACommandThatWasNeverSentIsSent(t *testing.T) {
	w := newWorld()
	c, d := w.connect(t, Options{ReconnectTimeout: time.Minute})
	s, err := c.Session(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, d.CompareAndWrite(t.Context(), make([]byte, 512), make([]byte, 512), 0))
	assert.Equal(t, []string{"89"}, w.executed)
}

func TestAnotherUnitIsNotWritten(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"designator": func(w *world) { w.id = 2 },
		"none":       func(w *world) { w.id = 0 },
		"smaller":    func(w *world) { w.unit.blocks-- },
		"blocks":     func(w *world) { w.unit.blockSize = 4096 },
	} {
		w := newWorld()
		_, d := w.connect(t, Options{ReconnectTimeout: time.Minute, Exclusive: true})
		w.lose = func(cdb []byte) loss {
			if cdb[0] != opWrite10 {
				return keep
			}
			change(w)
			w.lose = nil
			return lostBefore
		}
		err := d.WriteAt(t.Context(), make([]byte, 4096), 0)
		assert.ErrorIs(t, err, ErrOtherUnit, name)
		var unknown *UnknownOutcomeError
		assert.ErrorAs(t, err, &unknown, "%s: the first unit may have been written", name)
		assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 4096), 0), ErrOtherUnit, name)
		assert.Empty(t, w.executed, name)
	}
}

// TestNoFenceNoReplay: a login at another portal group does not end the old session.
func TestNoFenceNoReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, d := w.connect(t, Options{ReconnectTimeout: time.Second, Exclusive: true})
		w.lose = func([]byte) loss { w.group, w.lose = "2", nil; return lostAfter }
		err := d.WriteAt(t.Context(), make([]byte, 512), 0)
		var unknown *UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		assert.ErrorContains(t, err, "portal group")
		assert.Equal(t, []string{"2a"}, w.executed)

		w = newWorld()
		w.group = ""
		_, err = Connect(t.Context(), w, "h:1", "iqn.2026-01.test:disk", Options{Exclusive: true})
		assert.ErrorContains(t, err, "TargetPortalGroupTag")
	})
}

// TestFlushDoesNotVouchForALostCache: what was acknowledged before a loss may have been in a cache that is gone.
func TestFlushDoesNotVouchForALostCache(t *testing.T) {
	for _, wce := range []bool{true, false} {
		w := newWorld()
		w.wce = wce
		_, d := w.connect(t, Options{ReconnectTimeout: time.Minute, Exclusive: true})
		p := make([]byte, 512)
		require.NoError(t, d.WriteAt(t.Context(), p, 0))
		require.NoError(t, d.Flush(t.Context()))
		w.loseOnce(opRead10, lostBefore)
		require.NoError(t, d.ReadAt(t.Context(), p, 0))
		require.NoError(t, d.Flush(t.Context()), "all writes had been flushed")

		require.NoError(t, d.WriteAt(t.Context(), p, 0))
		w.loseOnce(opWrite10, lostAfter)
		require.NoError(t, d.WriteAt(t.Context(), p, 512))
		err := d.Flush(t.Context())
		if wce {
			assert.ErrorIs(t, err, ErrCacheDoubtful)
		} else {
			assert.NoError(t, err, "there is no cache to lose")
		}
		require.NoError(t, d.Flush(t.Context()), "told once")

		require.NoError(t, d.WriteAt(t.Context(), p, 0))
		w.loseOnce(opSynchronizeCache10, lostAfter)
		assert.Equal(t, wce, errors.Is(d.Flush(t.Context()), ErrCacheDoubtful))
	}
}

func TestAFlushThatFailsLeavesItsWritesToTheNext(t *testing.T) {
	w := newWorld()
	w.wce = true
	_, d := w.connect(t, Options{ReconnectTimeout: time.Minute})
	p := make([]byte, 512)
	require.NoError(t, d.WriteAt(t.Context(), p, 0))
	w.unit.script = []unitAnswer{{statusCheckCondition, fixedSense(3, 0x0c, 0)}}
	require.Error(t, d.Flush(t.Context()))
	w.loseOnce(opRead10, lostBefore)
	require.NoError(t, d.ReadAt(t.Context(), p, 0))
	assert.ErrorIs(t, d.Flush(t.Context()), ErrCacheDoubtful)
}

func TestReconnectingHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, d := w.connect(t, Options{ReconnectTimeout: 30 * time.Second})
		w.lose = func([]byte) loss { w.refused = errors.New("nobody there"); return lostBefore }
		start := time.Now()
		err := d.ReadAt(t.Context(), make([]byte, 512), 0)
		assert.ErrorContains(t, err, "nobody there")
		assert.ErrorIs(t, err, errDead, "and why the session was lost")
		assert.Equal(t, 30*time.Second, time.Since(start))
		tries := w.dials.Load()
		assert.Error(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
		assert.Equal(t, tries+1, w.dials.Load(), "then each call tries once")

		ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
		defer stop()
		assert.Error(t, d.ReadAt(ctx, make([]byte, 512), 0))
		w.refused, w.lose = nil, nil
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0), "and finds a target that came back late")
	})
}

// TestALoginAloneIsNoSuccess is field report RC-06: the target takes logins and closes before the first command.
func TestALoginAloneIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, d := w.connect(t, Options{ReconnectTimeout: time.Minute})
		bad := 0
		w.lose = func([]byte) loss {
			if bad++; bad > 20 {
				return keep
			}
			return lostBefore
		}
		start := time.Now()
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
		assert.Equal(t, int32(1+20), w.dials.Load(), "the first good session is used")
		assert.Greater(t, time.Since(start), 10*maxReopenDelay, "the pauses grow")

		bad = 0
		w.lose = func([]byte) loss {
			if bad++; bad > 1000 {
				return keep // it would go on for ever
			}
			return lostBefore
		}
		start = time.Now()
		assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 512), 0), errDead)
		assert.InDelta(t, time.Minute, time.Since(start), float64(maxReopenDelay), "there is an end")
		dials := w.dials.Load()
		assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 512), 0), errDead)
		assert.LessOrEqual(t, w.dials.Load()-dials, int32(2), "then each call tries once")
		w.lose = nil
	})
}

func TestCloseEndsReconnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, d := w.connect(t, Options{ReconnectTimeout: time.Hour})
		w.lose = func([]byte) loss { w.refused = errors.New("nobody there"); return lostBefore }
		failed := make(chan error, 1)
		go func() { failed <- d.ReadAt(t.Context(), make([]byte, 512), 0) }()
		time.Sleep(time.Minute) // of the bubble's time
		require.NoError(t, c.Close())
		assert.ErrorIs(t, <-failed, net.ErrClosed)
		assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 512), 0), net.ErrClosed)
		require.NoError(t, c.Close())
	})
}

func TestOverlappingWritesOfAnExclusiveDiskWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p spans
		first, err := p.enter(t.Context(), 0, 100)
		require.NoError(t, err)
		beside, err := p.enter(t.Context(), 100, 100)
		require.NoError(t, err)
		ended := false
		go func() {
			i, err := p.enter(t.Context(), 50, 51)
			assert.NoError(t, err)
			ended = true
			p.leave(i)
		}()
		synctest.Wait()
		p.leave(first)
		synctest.Wait()
		assert.False(t, ended, "the other neighbour is still there")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = p.enter(ctx, 150, 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		p.leave(beside)
		synctest.Wait()
		assert.True(t, ended)
		assert.LessOrEqual(t, len(p.active), 2, "places are used again")
	})
}

func TestWarmIOOfAConnectionDoesNotAllocate(t *testing.T) {
	w := newWorld()
	w.quiet = true
	w.unit = fakeUnit{blocks: 1 << 20, blockSize: 512}
	_, d := w.connect(t, Options{ReconnectTimeout: time.Minute, Exclusive: true})
	p := make([]byte, 4096)
	ctx := context.Background()
	for name, io := range map[string]func() error{
		"read":  func() error { return d.ReadAt(ctx, p, 0) },
		"write": func() error { return d.WriteAt(ctx, p, 0) },
	} {
		var err error
		w.unit.cdbs = make([][]byte, 0, 4096)
		n := testing.AllocsPerRun(500, func() { err = errors.Join(err, io()) })
		require.NoError(t, err)
		if !raceEnabled {
			assert.LessOrEqual(t, n, 1.0, "%s: one is the fake's record of the CDB", name)
		}
	}
}
