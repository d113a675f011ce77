package roce_test

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore"
)

// A slowStore takes its time, so that commands are with the target's workers while other things happen to them: aborts,
// and the end of their session. Its bytes are not for mapping.
type slowStore struct {
	backstore.Store
	rareShare int // one command in so many takes up to rareWait

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

const (
	usualWait = 200 * time.Microsecond // at most
	rareWait  = 12 * time.Second       // at most; a login waits for 15 s for the commands of the session it replaces
)

func (s *slowStore) Info() backstore.Info {
	i := s.Store.Info()
	i.NeverBlocks = false
	return i
}

func (s *slowStore) ReadAt(bufs [][]byte, off int64) error {
	s.wait()
	return s.Store.ReadAt(bufs, off)
}

func (s *slowStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	s.wait()
	return s.Store.WriteAt(bufs, off, fua)
}

func (s *slowStore) wait() {
	s.mu.Lock()
	most := usualWait
	if s.rng.IntN(s.rareShare) == 0 {
		most = rareWait
	}
	d := time.Duration(s.rng.Int64N(int64(most)))
	s.mu.Unlock()
	time.Sleep(d)
}
