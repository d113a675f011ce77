package verify_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// volatile is a disk with a cache that a power cut empties. Requests take a millisecond.
type volatile struct {
	*memDisk
	durable []byte
}

func newVolatile(size int) *volatile {
	return &volatile{newMemDisk(size, 512), make([]byte, size)}
}

func (d *volatile) WriteAt(ctx context.Context, p []byte, off int64) error {
	time.Sleep(time.Millisecond)
	return d.memDisk.WriteAt(ctx, p, off)
}

func (d *volatile) ReadAt(ctx context.Context, p []byte, off int64) error {
	time.Sleep(time.Millisecond)
	return d.memDisk.ReadAt(ctx, p, off)
}

func (d *volatile) Flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	copy(d.durable, d.data)
	return nil
}

func (d *volatile) powerCut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data, d.durable)
	d.fail = nil
}

// resumed runs a plan from a state, as JSON, until it ends or until a time, and returns what was saved last.
func resumed(t *testing.T, p verify.Plan, d verify.Disk, state []byte, until time.Duration) ([]byte, verify.Result, error) {
	t.Helper()
	r := verify.New([]verify.Disk{d}, p, nil)
	if state != nil {
		var s verify.State
		require.NoError(t, json.Unmarshal(state, &s))
		require.NoError(t, r.Resume(s))
	}
	r.Keep(func(s verify.State) (err error) {
		state, err = json.Marshal(s)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), until)
	defer cancel()
	res, err := r.Run(ctx)
	return state, res, err
}

// However often it is stopped, all is written and read once, or little more, and the fault is found.
func TestAStoppedVerificationGoesOn(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newVolatile(1 << 18)
			d.read = func(p []byte, off int64) {
				if off == 4096 {
					p[100] ^= 1
				}
			}
			p := verify.Plan{Ranges: []verify.Range{{Start: 0, End: 1 << 18}}, RequestBytes: 1024, Seed: 3, Runs: 2, Depth: 4, Overlap: overlap}
			require.NoError(t, p.Check(1<<18, 512))
			var state []byte
			var res verify.Result
			err := context.DeadlineExceeded
			for n := 0; err != nil; n++ {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Less(t, n, 40)
				state, res, err = resumed(t, p, d, state, time.Duration(37+n*30)*time.Millisecond)
			}
			assert.NotZero(t, res.Kinds[stamp.BitFlip])
			assert.Equal(t, res.Wrong, res.Kinds[stamp.BitFlip], res.Kinds)
			assert.Equal(t, 2, res.Runs)
			if !overlap {
				assert.InDelta(t, 2<<18, res.WrittenBytes, 20*5*1024)
				assert.InDelta(t, 2<<18, res.ReadBytes, 20*5*1024)
				assert.GreaterOrEqual(t, res.ReadBytes, int64(2<<18))
			}
		})
	}
}

// What the state says to be written survives the power cut of a disk that keeps what was flushed.
func TestAStateClaimsOnlyWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newVolatile(4 << 20)
		p := verify.Plan{Ranges: []verify.Range{{Start: 0, End: 4 << 20}}, RequestBytes: 512, Seed: 3, Runs: 1, Depth: 1}
		require.NoError(t, p.Check(4<<20, 512))
		go func() {
			time.Sleep(7500 * time.Millisecond)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.fail = errors.New("no power")
		}()
		state, _, err := resumed(t, p, d, nil, time.Hour)
		require.ErrorContains(t, err, "no power")
		require.NotNil(t, state, "it was saved after 5 s")
		d.powerCut()
		_, res, err := resumed(t, p, d, state, time.Hour)
		require.NoError(t, err)
		assert.Zero(t, res.Wrong, res.Kinds)
		assert.Greater(t, res.WrittenBytes, int64(4<<20-512*100))
		assert.EqualValues(t, 4<<20, res.ReadBytes)
	})
}

func TestAStateOfAnotherPlanIsRefused(t *testing.T) {
	p := plan(verify.Range{Start: 0, End: 1 << 20})
	require.NoError(t, p.Check(1<<20, 512))
	other := p
	other.Seed++
	r := verify.New(nil, p, nil)
	require.ErrorIs(t, r.Resume(verify.State{Plan: other, Run: 1}), verify.ErrOtherPlan)
	require.ErrorIs(t, r.Resume(verify.State{Plan: p}), verify.ErrOtherPlan)
	require.ErrorIs(t, r.Resume(verify.State{Plan: p, Run: 1, Slots: 99}), verify.ErrOtherPlan)
	require.ErrorIs(t, r.Resume(verify.State{Plan: p, Run: 1, Done: -1}), verify.ErrOtherPlan)
	other = p
	other.Depth, other.Time, other.Runs = 9, time.Hour, 0
	require.NoError(t, r.Resume(verify.State{Plan: other, Run: 1}))
}
