package initiator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pair is two paths to one fake unit, in the portal groups 1 and 2.
func pair() (a, b *world) {
	a, b = newWorld(), newWorld()
	b.group = "2"
	a.port, b.port = 1, 2
	return a, b
}

func join(t *testing.T, o Options, worlds ...*world) (*Paths, *Disk) {
	t.Helper()
	var paths []Path
	for _, w := range worlds {
		paths = append(paths, Path{w, "h:1", "iqn.2026-01.test:disk"})
	}
	o.PingInterval = -1
	m, err := ConnectPaths(t.Context(), o, paths...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() }) // a session that is just being lost tells why
	d, err := m.Disk(t.Context(), 0)
	require.NoError(t, err)
	return m, d
}

// fail has the next command of an operation code lose a path, which is down from then on.
func (w *world) fail(op byte, how loss) {
	w.lose = func(cdb []byte) loss {
		if cdb[0] != op {
			return keep
		}
		w.lose = nil
		w.down.Store(true)
		return how
	}
}

// inUse is the index of the path that d uses.
func inUse(d *Disk) int {
	for i, p := range d.PathStates() {
		if p.InUse {
			return i
		}
	}
	return -1
}

func TestPathsHaveSessionsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		m, d := join(t, Options{}, a, b)
		synctest.Wait()
		assert.NotEqual(t, a.isids[0], b.isids[0])
		again, err := m.Disk(t.Context(), 0)
		require.NoError(t, err)
		assert.Same(t, d, again)
		_, err = ConnectPaths(t.Context(), Options{})
		assert.ErrorContains(t, err, "0 paths")
		_, err = ConnectPaths(t.Context(), Options{}, make([]Path, maxPaths+1)...)
		assert.ErrorContains(t, err, "9 paths")
	})
}

// TestReadsGoOnAtOnce: nothing has to be waited for.
func TestReadsGoOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		_, d := join(t, Options{}, a, b)
		assert.Equal(t, 0, inUse(d))
		a.fail(opRead10, lostAfter)
		start := time.Now()
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
		require.NoError(t, d.Flush(t.Context()))
		require.NoError(t, d.CompareAndWrite(t.Context(), make([]byte, 512), make([]byte, 512), 0))
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 1, inUse(d))
		assert.Equal(t, []string{"28", "35", "89"}, b.executed)
	})
}

// TestAWriteWaitsForItsFence: on a path that was lost a write may be carried out whenever it likes. It is sent on the
// other one, and so are others to its blocks, only when a login has ended what was left.
func TestAWriteWaitsForItsFence(t *testing.T) {
	for _, how := range []loss{lostBefore, lostAfter} {
		synctest.Test(t, func(t *testing.T) {
			a, b := pair()
			_, d := join(t, Options{Exclusive: true, ReconnectTimeout: time.Minute}, a, b)
			synctest.Wait()
			a.fail(opWrite10, how)
			ended := make(chan error, 2)
			p := make([]byte, 1024)
			go func() { ended <- d.WriteAt(t.Context(), p, 0) }()
			synctest.Wait()
			go func() { ended <- d.WriteAt(t.Context(), p, 512) }()
			synctest.Wait()
			require.NoError(t, d.WriteAt(t.Context(), p, 1024+512), "other blocks")
			require.NoError(t, d.ReadAt(t.Context(), p, 0))
			synctest.Wait()
			assert.Equal(t, []string{"2a", "28"}, b.executed)
			time.Sleep(10 * time.Second) // of the bubble's time
			assert.Empty(t, ended)
			a.down.Store(false)
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
			synctest.Wait()
			assert.Len(t, append(a.executed, b.executed...), 4+int(how-lostBefore))
		})
	}
}

// TestWithoutFenceTheOutcomeIsUnknown: and the blocks are not written to, until there is one.
func TestWithoutFenceTheOutcomeIsUnknown(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, b := pair()
			_, d := join(t, Options{Exclusive: exclusive, ReconnectTimeout: time.Minute}, a, b)
			synctest.Wait()
			a.fail(opWrite10, lostBefore)
			p := make([]byte, 512)
			start := time.Now()
			err := d.WriteAt(t.Context(), p, 0)
			var unknown *UnknownOutcomeError
			require.ErrorAs(t, err, &unknown)
			assert.ErrorIs(t, err, errDead)
			if exclusive {
				assert.ErrorIs(t, err, ErrUnfenced)
				assert.Equal(t, time.Minute, time.Since(start))
			}
			start = time.Now()
			assert.ErrorIs(t, d.WriteAt(t.Context(), p, 0), ErrUnfenced)
			assert.Equal(t, time.Minute, time.Since(start))
			batch, err := d.Batch(1)
			require.NoError(t, err)
			require.NoError(t, batch.WriteAt(p, 0, 0))
			ended := make([]Completion, 1)
			_, err = batch.Wait(t.Context(), ended, 1)
			require.NoError(t, err)
			assert.ErrorIs(t, ended[0].Err, ErrUnfenced)
			assert.ErrorIs(t, d.CompareAndWrite(t.Context(), p, p, 0), ErrUnfenced)
			require.NoError(t, d.WriteAt(t.Context(), p, 512))
			assert.Equal(t, []string{"2a"}, b.executed)
			a.down.Store(false)
			require.NoError(t, d.WriteAt(t.Context(), p, 0), "fenced")
			assert.Nil(t, d.spans.doubted(0, 512, nil))
		})
	}
}

// TestAPortalOfTheSameGroupFences: the same target port, by another address.
func TestAPortalOfTheSameGroupFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		b.group = "1"
		_, d := join(t, Options{Exclusive: true, ReconnectTimeout: time.Minute}, a, b)
		synctest.Wait()
		a.fail(opWrite10, lostAfter)
		start := time.Now()
		require.NoError(t, d.WriteAt(t.Context(), make([]byte, 512), 0))
		assert.Less(t, time.Since(start), 10*time.Second)
		assert.Equal(t, []string{"2a"}, b.executed)
		require.Len(t, b.isids, 2)
		assert.Equal(t, a.isids[0], b.isids[1], "the lost session's")
	})
}

// TestAWriteThatWasGivenUpIsFencedToo: its caller is gone, and it may be carried out all the same.
func TestAWriteThatWasGivenUpIsFencedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		_, d := join(t, Options{ReconnectTimeout: time.Minute}, a, b)
		synctest.Wait()
		ctx, stop := context.WithCancel(t.Context())
		a.lose = func(cdb []byte) loss {
			if cdb[0] == opWrite10 {
				stop()
				a.lose = nil
				a.down.Store(true)
				return lostBefore
			}
			return keep
		}
		p := make([]byte, 512)
		require.Error(t, d.WriteAt(ctx, p, 0))
		synctest.Wait()
		assert.ErrorIs(t, d.WriteAt(t.Context(), p, 0), ErrUnfenced)
		a.down.Store(false)
		require.NoError(t, d.WriteAt(t.Context(), p, 0))
	})
}

// TestAWriteThatWasGivenUpDoesNotFollow: the path moves while the first one lives, and may still carry out the write.
func TestAWriteThatWasGivenUpDoesNotFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		states := new(access)
		a.alua, b.alua = states, states
		_, d := join(t, Options{ReconnectTimeout: time.Minute}, a, b)
		synctest.Wait()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		first := a.last.Load()
		command := first.onCmd
		first.onCmd = func(tr *iscsi.Transfer, cmd *iscsi.SCSICommand) {
			if cmd.CDB[0] == opWrite10 && ctx.Err() == nil {
				stop() // and no answer
				return
			}
			command(tr, cmd)
		}
		p := make([]byte, 512)
		require.ErrorIs(t, d.WriteAt(ctx, p, 0), context.Canceled)
		states.set(map[int]AccessState{1: AccessStandby})
		dials := a.dials.Load()
		require.NoError(t, d.WriteAt(t.Context(), p, 512))
		assert.Equal(t, 1, inUse(d))
		assert.Equal(t, dials, a.dials.Load(), "other blocks need no fence")
		require.NoError(t, d.WriteAt(t.Context(), p, 0))
		assert.Equal(t, dials+1, a.dials.Load(), "logged in again, which ends what was left")
	})
}

func TestAccessStatesChooseThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		states := new(access).set(map[int]AccessState{1: AccessStandby})
		a.alua, b.alua = states, states
		_, d := join(t, Options{ReconnectTimeout: time.Minute}, a, b)
		assert.Equal(t, 1, inUse(d), "the optimized one")
		p := make([]byte, 512)
		for name, c := range map[string]struct {
			states map[int]AccessState
			want   int
		}{
			"refused":               {map[int]AccessState{2: AccessStandby}, 0},
			"unavailable":           {map[int]AccessState{1: AccessUnavailable}, 1},
			"told, non-optimized":   {map[int]AccessState{1: AccessNonOptimized}, 1},
			"optimized is better":   {map[int]AccessState{2: AccessNonOptimized}, 0},
			"offline":               {map[int]AccessState{1: AccessOffline}, 1},
			"in transition to both": {map[int]AccessState{1: AccessTransitioning}, 1},
		} {
			states.set(c.states)
			told := attention(0x2a, 6)
			for _, w := range []*world{a, b} {
				w.unit.script = []unitAnswer{told}
			}
			require.NoError(t, d.WriteAt(t.Context(), p, 0), name)
			require.NoError(t, d.WriteAt(t.Context(), p, 0), name)
			assert.Equal(t, c.want, inUse(d), name)
			for _, w := range []*world{a, b} {
				w.unit.script = nil
			}
		}

		states.set(map[int]AccessState{1: AccessTransitioning, 2: AccessTransitioning})
		done := make(chan error, 1)
		go func() { done <- d.CompareAndWrite(t.Context(), p, p, 0) }()
		time.Sleep(5 * time.Second)
		assert.Empty(t, done)
		states.set(map[int]AccessState{1: AccessStandby})
		require.NoError(t, <-done, "whatever was refused was not executed")
		assert.Equal(t, 1, inUse(d))

		states.set(map[int]AccessState{1: AccessStandby, 2: AccessStandby})
		start := time.Now()
		err := d.ReadAt(t.Context(), p, 0)
		assert.ErrorContains(t, err, "standby")
		assert.Equal(t, time.Minute, time.Since(start))
		start = time.Now()
		require.Error(t, d.ReadAt(t.Context(), p, 0))
		assert.Zero(t, time.Since(start), "then each call looks once")
	})
}

func TestAPathIsMadeOptimizedWhereThatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		states := new(access).set(map[int]AccessState{1: AccessStandby, 2: AccessStandby})
		a.alua, b.alua = states, states
		_, d := join(t, Options{SetAccess: true}, a, b)
		assert.Equal(t, []string{"a4 0000000000000001"}, a.executed)
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
		assert.Equal(t, 0, inUse(d))
		assert.Empty(t, b.executed)
	})
}

func TestAPathThatComesBackIsUsedIfItIsBetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		states := new(access).set(map[int]AccessState{2: AccessNonOptimized})
		a.alua, b.alua = states, states
		_, d := join(t, Options{}, a, b)
		a.fail(opRead10, lostBefore)
		p := make([]byte, 512)
		require.NoError(t, d.ReadAt(t.Context(), p, 0))
		assert.Equal(t, 1, inUse(d))
		a.down.Store(false)
		time.Sleep(2 * maxReopenDelay)
		require.NoError(t, d.ReadAt(t.Context(), p, 0))
		assert.Equal(t, 0, inUse(d))
	})
}

func TestAPathToAnotherUnitIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		b.id = 2
		_, d := join(t, Options{ReconnectTimeout: time.Second}, a, b)
		assert.ErrorIs(t, d.PathStates()[1].Err, ErrOtherUnit)
		a.fail(opRead10, lostBefore)
		assert.ErrorIs(t, d.ReadAt(t.Context(), make([]byte, 512), 0), ErrOtherUnit)
		assert.Empty(t, b.executed)
		a.down.Store(false)
		time.Sleep(2 * maxReopenDelay) // of the bubble's time
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
	})
}

// TestAFlushOnAnotherPathAsksTheFirst whether it is still what it was: its controller may have had the cache.
func TestAFlushOnAnotherPathAsksTheFirst(t *testing.T) {
	const (
		lives = iota
		lost
		silent // and nobody has noticed
	)
	for how := range silent + 1 {
		synctest.Test(t, func(t *testing.T) {
			a, b := pair()
			a.wce, b.wce = true, true
			states := new(access).set(map[int]AccessState{})
			a.alua, b.alua = states, states
			_, d := join(t, Options{}, a, b)
			synctest.Wait()
			p := make([]byte, 512)
			require.NoError(t, d.WriteAt(t.Context(), p, 0))
			a.last.Load().mute.Store(how == silent)
			if how == lost {
				a.fail(opRead10, lostBefore)
			} else {
				states.set(map[int]AccessState{1: AccessStandby})
			}
			require.NoError(t, d.ReadAt(t.Context(), p, 0))
			require.Equal(t, 1, inUse(d))
			err := d.Flush(t.Context())
			assert.Equal(t, how != lives, errors.Is(err, ErrCacheDoubtful), err)
			assert.NoError(t, d.Flush(t.Context()), "told once")
		})
	}
}

func TestPortGroupsThatLie(t *testing.T) {
	good := []byte{0, 0, 0, 20, 0x82, 0x8f, 0, 7, 0, 0, 0, 1, 0, 0, 0, 9, 0x01, 0x8f, 0, 8, 0, 0, 0, 0}
	state, preferred, err := parseGroups(good, 7)
	require.NoError(t, err)
	assert.Equal(t, AccessStandby, state)
	assert.True(t, preferred)
	state, preferred, err = parseGroups(good, 8)
	require.NoError(t, err)
	assert.Equal(t, AccessNonOptimized, state)
	assert.False(t, preferred)
	for n := range good {
		_, _, err := parseGroups(good[:n], 8)
		assert.Error(t, err, "first %d bytes", n)
	}
	good[11] = 255
	_, _, err = parseGroups(good, 8)
	assert.Error(t, err, "more ports than there are")
	copy(good, []byte{0xff, 0xff, 0xff, 0xff})
	_, _, err = parseGroups(good, 7)
	assert.NoError(t, err, "a list that says it is longer")
}
