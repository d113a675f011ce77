package lab

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
)

// collectEvery: garbage is collected between runs, not during one, where it would have goroutines change places.
const collectEvery = 8

// A bench is where runs take place, one at a time: on one processor, so that goroutines take turns and a run follows
// from its seed. Close gives the process back what it had.
type bench struct {
	procs, percent int
	runs           int
}

func newBench() *bench {
	return &bench{procs: runtime.GOMAXPROCS(1), percent: debug.SetGCPercent(-1)}
}

func (b *bench) close() {
	runtime.GOMAXPROCS(b.procs)
	debug.SetGCPercent(b.percent)
}

// run runs f in a bubble of its own, in which time passes only when all goroutines wait. The package testing lends the
// bubble: it is the one way in that the standard library has, and a zero T is all that Test wants (TestBubble).
func (b *bench) run(f func()) {
	if b.runs++; b.runs%collectEvery == 0 {
		runtime.GC()
	}
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}
