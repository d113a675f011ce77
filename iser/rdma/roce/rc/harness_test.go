package rc

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// weather is what the net does to packets, in parts per thousand.
type weather struct {
	lose, double, corrupt, reorder int
	delay                          time.Duration // at most, besides 20 us
	room                           int           // packets of a round; 0: no limit
}

// A network joins two queue pairs under a clock of its own. Everything about it follows from its seed.
type network struct {
	rng     *rand.Rand
	now     time.Time
	w       weather
	ends    [2]*end
	flying  flights
	serial  int
	touched int // packets that were lost, doubled, corrupted or overtaken
	tap     func(from int, p wire.Packet)
	drop    func(from int, p wire.Packet) bool
}

type end struct {
	n     *network
	side  int
	mem   *Memory
	q     *QP
	sent  int // packets of this round
	sends []rdma.Completion
	recvs []rdma.Completion
	last  time.Time // latest arrival of a packet from here: it keeps order
	done  func(rdma.Completion)
}

type flight struct {
	at     time.Time
	serial int
	to     int
	p      wire.Packet
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].serial < f[j].serial
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any     { x := (*f)[len(*f)-1]; *f = (*f)[:len(*f)-1]; return x }

func config() Config {
	return Config{
		QPN: 0x11, PeerQPN: 0x22, MTU: 256, SendPSN: 0xfffffe, RecvPSN: 0x7ffffe, ReadsOut: 4, ReadsIn: 4, RetryCount: 7, RNRRetry: 7,
		AckTimeout: 500 * time.Millisecond, Window: 64, ReadWindow: 16 * 256, SendDepth: 32, RecvDepth: 32, MaxSGE: 4,
	}
}

// newNetwork joins two queue pairs; change may alter their configurations.
func newNetwork(seed uint64, w weather, change func(a, b *Config)) *network {
	n := &network{rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0), w: w}
	a, b := config(), config()
	b.QPN, b.PeerQPN, b.SendPSN, b.RecvPSN = a.PeerQPN, a.QPN, a.RecvPSN, a.SendPSN
	a.Memory, b.Memory = NewMemory(seed), NewMemory(seed+1)
	if change != nil {
		change(&a, &b)
	}
	for i, c := range []Config{a, b} {
		n.ends[i] = &end{n: n, side: i, mem: c.Memory, q: New(c)}
	}
	return n
}

// Packet implements Sink. The packet is sent at the end of the round.
func (e *end) Packet(_ *QP, op wire.Opcode, size int) wire.Packet {
	if e.n.w.room > 0 && e.sent >= e.n.w.room {
		return nil
	}
	e.sent++
	p := wire.New(make([]byte, op.HeaderSize()+size+3+wire.ICRCSize), op, size)
	e.n.launch(e, p)
	return p
}

func (e *end) Complete(_ *QP, c rdma.Completion) {
	if c.Recv {
		e.recvs = append(e.recvs, c)
	} else {
		e.sends = append(e.sends, c)
	}
	if e.done != nil {
		e.done(c)
	}
}

func (n *network) chance(perMille int) bool { return perMille > 0 && n.rng.IntN(1000) < perMille }

// launch decides a packet's fate. Its bytes are not there yet.
func (n *network) launch(e *end, p wire.Packet) {
	if n.chance(n.w.lose + n.w.corrupt) { // a corrupted packet is one that the ICRC drops
		n.touched++
		n.push(-1, n.now, p)
		return
	}
	at := n.now.Add(20 * time.Microsecond)
	if n.w.delay > 0 {
		at = at.Add(time.Duration(n.rng.Int64N(int64(n.w.delay))))
	}
	if n.chance(n.w.reorder) {
		n.touched++
		at = at.Add(100 * time.Microsecond)
	} else {
		if at.Before(e.last) {
			at = e.last
		}
		e.last = at
	}
	n.push(1-e.side, at, p)
	if n.chance(n.w.double) {
		n.touched++
		n.push(1-e.side, at.Add(time.Duration(n.rng.Int64N(int64(300*time.Microsecond)))), p)
	}
}

func (n *network) push(to int, at time.Time, p wire.Packet) {
	n.serial++
	heap.Push(&n.flying, flight{at, n.serial, to, p})
}

// round lets an end transmit until it has nothing more.
func (n *network) round(e *end) {
	for i := 0; ; i++ {
		e.sent = 0
		e.q.Transmit(n.now, e)
		if !e.q.More() {
			return
		}
		if i > 10000 {
			panic("a round has no end")
		}
	}
}

// kick lets both ends transmit what was posted.
func (n *network) kick() {
	for _, e := range n.ends {
		n.round(e)
	}
}

// step does what is next: a packet's arrival, with all that arrive then, or a deadline. False: nothing ever will.
func (n *network) step() bool {
	var next time.Time
	if len(n.flying) > 0 {
		next = n.flying[0].at
	}
	for _, e := range n.ends {
		if d := e.q.Deadline(); !d.IsZero() && (next.IsZero() || d.Before(next)) {
			next = d
		}
	}
	if next.IsZero() {
		return false
	}
	if next.After(n.now) {
		n.now = next
	}
	var got [2]bool
	for len(n.flying) > 0 && !n.flying[0].at.After(n.now) {
		f := heap.Pop(&n.flying).(flight)
		if f.to < 0 {
			continue
		}
		p, err := wire.Parse(f.p)
		if err != nil {
			panic(fmt.Sprintf("malformed packet: %v", err))
		}
		if n.tap != nil {
			n.tap(1-f.to, p)
		}
		if n.drop != nil && n.drop(1-f.to, p) {
			continue
		}
		e := n.ends[f.to]
		e.sent = 0
		e.q.Receive(n.now, p, e)
		got[f.to] = true
	}
	for i, e := range n.ends {
		if d := e.q.Deadline(); got[i] || !d.IsZero() && !d.After(n.now) {
			n.round(e)
		}
	}
	return true
}

// run steps until nothing happens any more, or the time is up.
func (n *network) run(limit time.Duration) bool {
	n.kick()
	for until := n.now.Add(limit); n.now.Before(until); {
		if !n.step() {
			return true
		}
	}
	return false
}
