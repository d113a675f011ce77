package lab

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore"
)

// A slowStore takes its time, on the target's workers, and its bytes are not for mapping.
type slowStore struct {
	backstore.Store
	wait func(write bool, off int64) time.Duration
}

func (s *slowStore) Info() backstore.Info {
	i := s.Store.Info()
	i.NeverBlocks = false
	return i
}

func (s *slowStore) ReadAt(bufs [][]byte, off int64) error {
	time.Sleep(s.wait(false, off))
	return s.Store.ReadAt(bufs, off)
}

func (s *slowStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	time.Sleep(s.wait(true, off))
	return s.Store.WriteAt(bufs, off, fua)
}

// Close leaves the store below to its owner.
func (s *slowStore) Close() error { return nil }

// slow takes a chance time for each request, from least on for spread.
func slow(least, spread time.Duration) func(*world, backstore.Store) (backstore.Store, error) {
	return func(w *world, s backstore.Store) (backstore.Store, error) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(w.seed, 300))
		return &slowStore{s, func(bool, int64) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return least + 1 + time.Duration(rng.Int64N(int64(spread)))
		}}, nil
	}
}

var errNotYet = errors.New("the store has not done it yet")

// An absentStore says of writes that would take long that they have ended, and does them later all the same: to the
// target it is as if it did not wait for the writes of a session that ends.
type absentStore struct {
	slowStore
	wg sync.WaitGroup
}

func (s *absentStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	d := s.wait(true, off)
	if d < longWrite {
		return s.slowStore.WriteAt(bufs, off, fua)
	}
	var copied [][]byte
	for _, b := range bufs {
		copied = append(copied, slices.Clone(b))
	}
	s.wg.Go(func() {
		time.Sleep(d)
		_ = s.Store.WriteAt(copied, off, fua) // a RAM store does not fail
	})
	time.Sleep(d / 100)
	return errNotYet
}

// Close waits for the last write.
func (s *absentStore) Close() error {
	s.wg.Wait()
	return nil
}
