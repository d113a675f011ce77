package backstoretest

import (
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/stretchr/testify/require"
)

// heldTimeout bounds the wait of Gate.Held.
const heldTimeout = 10 * time.Second

// A Gate is a store that may block, and does while it is held: reads and writes wait. It maps nothing.
type Gate struct {
	backstore.Store
	mu     sync.Mutex
	shut   chan struct{} // not nil: reads and writes wait until it is closed
	came   int           // since Hold
	writes int
}

// Info says of the store below that it may block.
func (g *Gate) Info() backstore.Info {
	i := g.Store.Info()
	i.NeverBlocks = false
	return i
}

// Hold makes reads and writes wait until Release.
func (g *Gate) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.came = make(chan struct{}), 0
}

// Release lets them go on. It may be called more than once.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// Held waits until n reads and writes have come since Hold.
func (g *Gate) Held(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.came >= n
	}, heldTimeout, time.Millisecond, "%d reads and writes", n)
}

// Writes is how many writes have been let through to the store.
func (g *Gate) Writes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writes
}

func (g *Gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.came++
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

// ReadAt passes the gate.
func (g *Gate) ReadAt(bufs [][]byte, off int64) error {
	g.pass()
	return g.Store.ReadAt(bufs, off)
}

// WriteAt passes the gate.
func (g *Gate) WriteAt(bufs [][]byte, off int64, fua bool) error {
	g.pass()
	g.mu.Lock()
	g.writes++
	g.mu.Unlock()
	return g.Store.WriteAt(bufs, off, fua)
}
