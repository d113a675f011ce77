package tcp

import (
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Both ends have megabytes to write before either reads. A loop that blocked in a write would hang here, on a
// pipe at once and on a socket when its buffers are full.
func TestBothEndsWriteAtTheSameTime(t *testing.T) {
	for _, kind := range []string{"pipe", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			a, b := net.Pipe()
			if kind == "tcp" {
				a, b = socketPair(t)
			}
			p := params(func(p *iscsi.Params) { p.FirstBurstLength = 1 << 20 })
			c, d := rig(t, a, b, p, p, 4<<20)
			stamp(d.mem[:1<<20], 1)
			want := append([]byte(nil), d.mem[:1<<20]...)
			const n = 24
			var reqs [2 * n]request
			var in [n][]byte
			out := make([]byte, 1<<20)
			for i := range n {
				in[i] = make([]byte, 1<<20)
				c.submit(&reqs[2*i], 0, [][]byte{in[i]}, nil)
				c.submit(&reqs[2*i+1], 2<<20, nil, [][]byte{out})
			}
			find := func(t *iscsi.Transfer) *request { return &reqs[t.ITT-1] }
			for c.live > 0 {
				require.NoError(t, c.turn(time.Now().Add(20*time.Second), find))
			}
			for i := range n {
				assert.Equal(t, want, in[i])
			}
		})
	}
}

// PF-01: a slow reader is served without a pause, and everybody gets everything.
func TestSlowReaderGetsEverything(t *testing.T) {
	for _, c := range []struct{ depth, size int }{{64, 512 << 10}, {128, 128 << 10}, {256, 64 << 10}} {
		t.Run(fmt.Sprintf("depth %d", c.depth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowReader(t, c.depth, c.size) })
		})
	}
}

func slowReader(t *testing.T, depth, size int) {
	near, far := net.Pipe()
	d := newDisk(near, params(func(p *iscsi.Params) { p.MaxSendData = 65536 }), size)
	stamp(d.mem, 1)
	released, last, gap := 0, time.Now(), time.Duration(0)
	d.seen = func(ev *iscsi.Event) bool {
		if ev.Kind == iscsi.EventReleased {
			released++
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
		return false
	}
	ended := make(chan error)
	go func() { ended <- d.run() }()
	r := &peer{t: t, nc: far}
	go func() {
		for i := range depth {
			_, _ = far.Write(r.wire(command(opRead, uint32(i+1), 0, uint32(size), uint32(size)), nil, nil))
		}
	}()
	slow := 4 << 20 // bytes at 1 MB/s
	for range depth {
		for off, done := 0, false; !done; {
			bhs, data, err := r.next()
			require.NoError(t, err)
			var in iscsi.DataIn
			require.NoError(t, in.Parse(&bhs))
			require.EqualValues(t, off, in.Offset)
			require.Equal(t, d.mem[off:off+len(data)], data)
			off += len(data)
			done = in.HasStatus
			if slow > 0 {
				slow -= len(data)
				time.Sleep(time.Duration(len(data)) * time.Microsecond)
			}
		}
	}
	synctest.Wait()
	_ = far.Close()
	require.ErrorIs(t, <-ended, io.EOF)
	assert.Equal(t, depth, released)
	assert.Less(t, gap, 5*time.Second)
}

// SE-13: pings with data from a peer that does not read are not taken for ever, and he is shown the door.
func TestPingsFromAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		d := newDisk(near, params(), 4096)
		ended := make(chan error)
		go func() { ended <- d.run() }()
		r := &peer{t: t, nc: far}
		ping := r.wire(&iscsi.NOPOut{Immediate: true, ITT: 1, TTT: iscsi.ReservedTag}, nil, make([]byte, 65536))
		start, n := time.Now(), 0
		for {
			_ = far.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := far.Write(ping); err != nil {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				break
			}
			n++
		}
		assert.LessOrEqual(t, n*65536, maxBatch+maxBacklog+2*maxRecvData)
		synctest.Wait()
		assert.LessOrEqual(t, cap(d.dm.(*target).tx.fifo), 2*(maxBacklog+2*maxRecvData))
		d.dm.Wake() // is noticed in this state too
		err := <-ended
		assert.ErrorContains(t, err, "peer has taken nothing for 30s")
		assert.Equal(t, writeTimeout, time.Since(start))
		_ = far.Close()
	})
}

func TestPingsGoOnWhenThePeerReadsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		d := newDisk(near, params(), 4096)
		ended := make(chan error)
		go func() { ended <- d.run() }()
		r := &peer{t: t, nc: far}
		const n = 64
		go func() {
			for i := range uint32(n) {
				_, _ = far.Write(r.wire(&iscsi.NOPOut{Immediate: true, ITT: i, TTT: iscsi.ReservedTag}, nil, make([]byte, 65536)))
			}
		}()
		synctest.Wait()
		time.Sleep(20 * time.Second) // not long enough to be taken for dead
		for i := range uint32(n) {
			var p iscsi.NOPIn
			assert.Len(t, r.recv(&p), 65536)
			require.Equal(t, i, p.ITT)
		}
		synctest.Wait() // the last write has returned, and the end is met by a read
		_ = far.Close()
		require.ErrorIs(t, <-ended, io.EOF)
	})
}

// Any progress renews the peer's time.
func TestVerySlowPeerLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		d := newDisk(near, params(), 4096)
		ended := make(chan error)
		go func() { ended <- d.run() }()
		r := &peer{t: t, nc: far}
		_, err := far.Write(r.wire(command(opRead, 1, 0, 4096, 4096), nil, nil))
		require.NoError(t, err)
		b := make([]byte, 100)
		for range 20 {
			time.Sleep(writeTimeout - time.Second)
			_, err := io.ReadFull(far, b)
			require.NoError(t, err)
		}
		_ = far.Close()
		<-ended
	})
}

func TestWaitKeepsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		dm := NewTarget(near)
		defer dm.Close()
		defer far.Close()
		evs := make([]iscsi.Event, 1)
		start := time.Now()
		for _, at := range []time.Duration{time.Second, 5 * time.Second, 5 * time.Second, 7 * time.Second, 6 * time.Second, 9 * time.Second} {
			n, err := dm.Wait(evs, start.Add(at))
			require.NoError(t, err)
			require.Zero(t, n)
			require.GreaterOrEqual(t, time.Since(start), at)
		}
		require.Equal(t, 9*time.Second, time.Since(start))
		// Data ends a wait; the next one's deadline is earlier than the one before.
		go func() { _, _ = far.Write((&peer{}).wire(&iscsi.LoginRequest{}, nil, nil)) }()
		n, err := dm.Wait(evs, start.Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = dm.Wait(evs, start.Add(10*time.Second))
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 10*time.Second, time.Since(start))
		time.AfterFunc(time.Hour, dm.Wake)
		_, err = dm.Wait(evs, time.Time{})
		require.NoError(t, err)
		require.Equal(t, time.Hour+10*time.Second, time.Since(start))
	})
}

// Each of the wakers waits until the loop has seen its number. A wake-up that is lost hangs the test, unless data
// or a deadline comes to its help: so it runs without them, and with them for their sake.
func TestNoWakeIsLost(t *testing.T) {
	for _, kind := range []string{"pipe", "tcp", "pipe with data", "tcp with data"} {
		t.Run(kind, func(t *testing.T) {
			near, far := net.Pipe()
			data := strings.HasSuffix(kind, "data")
			if strings.HasPrefix(kind, "tcp") {
				near, far = socketPair(t)
			}
			dm := newDisk(near, params(), 4096).dm
			defer dm.Close()
			const wakers, rounds = 3, 3000
			var asked [wakers]atomic.Int64
			var answer [wakers]chan int64
			var wg sync.WaitGroup
			for w := range wakers {
				answer[w] = make(chan int64, 1)
				wg.Go(func() {
					for i := int64(1); i <= rounds; i++ {
						asked[w].Store(i)
						dm.Wake()
						if <-answer[w] != i {
							panic("answers out of order")
						}
					}
				})
			}
			stop := make(chan struct{})
			wg.Go(func() {
				if !data {
					return
				}
				raw := &peer{t: t, nc: far}
				b := raw.wire(&iscsi.NOPOut{ITT: 1, TTT: iscsi.ReservedTag}, nil, make([]byte, 1000))
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = far.Write(b[:700])
						_, _ = far.Write(b[700:])
					}
				}
			})
			loopUntilAnswered(t, dm, asked[:], answer[:], rounds, data)
			close(stop)
			_ = far.Close()
			wg.Wait()
		})
	}
}

func loopUntilAnswered(t *testing.T, dm iscsi.TargetDatamover, asked []atomic.Int64, answer []chan int64, rounds int64, deadlines bool) {
	evs, rnd := make([]iscsi.Event, 8), rand.New(rand.NewSource(1))
	seen := make([]int64, len(asked))
	for left := len(asked); left > 0; {
		var deadline time.Time
		switch n := rnd.Intn(4); {
		case n == 0 && deadlines:
			deadline = time.Now().Add(time.Duration(rnd.Intn(50)) * time.Microsecond)
		case n == 1:
			deadline = time.Now().Add(time.Hour + time.Duration(rnd.Intn(3))*time.Minute)
		}
		_, err := dm.Wait(evs, deadline)
		require.NoError(t, err)
		for w := range asked {
			if n := asked[w].Load(); n != seen[w] {
				seen[w] = n
				answer[w] <- n
				if n == rounds {
					left--
				}
			}
		}
		require.NoError(t, dm.Flush())
	}
}
