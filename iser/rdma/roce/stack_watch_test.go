package roce_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"sync"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
)

// A watch stands between iser and one provider and checks what passes, in both directions:
//
//   - completions come in the order of the posts, once each, none for a queue pair that is closed, and after an error
//     nothing succeeds;
//   - what a Send reads does not change before it has completed, for until then the device may read it again;
//   - memory offered to the peer with a command is offered to no other command before that one's response, does not
//     change meanwhile if the peer may only read it, and does not change afterwards until it is offered again;
//   - memory is not deregistered while a queue pair may still use it.
//
// The faults of a provider are planted here as well, below the checks.
type watch struct {
	name   string
	fail   func(format string, args ...any)
	burst  uint32      // FirstBurstLength, bytes
	limits rdma.Limits // the bounds that are to hold, zero: the device's own

	faults faults

	mu      sync.Mutex // guards what follows, and the watched things
	serial  uint64
	dev     *watchedDevice
	qps     map[uint32]*watchedQP
	regions []*watchedRegion
	checks  checks
}

// checks count what was compared, so that a test can see that it was.
type checks struct{ completions, sends, offers, ended int }

func newWatch(name string, burst uint32, f faults, fail func(string, ...any)) *watch {
	return &watch{name: name, fail: fail, burst: burst, faults: f, qps: make(map[uint32]*watchedQP)}
}

// lessen has the device do less than it can: a command's data takes several work requests.
func (w *watch) lessen(message uint32, sges, readSGEs int) {
	w.limits = rdma.Limits{MaxMessage: message, MaxSGE: sges, MaxReadSGE: readSGEs}
}

// arm lets faults begin that would else keep sessions from being opened.
func (w *watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults.armed = true
}

func (w *watch) failf(format string, args ...any) { w.fail(w.name+": "+format, args...) }

// provider is p, watched.
func (w *watch) provider(p rdma.Provider) rdma.Provider { return &watchedProvider{p, w} }

type watchedProvider struct {
	rdma.Provider
	w *watch
}

func (p *watchedProvider) Listen(a netip.AddrPort) (rdma.Listener, error) {
	l, err := p.Provider.Listen(a)
	if err != nil {
		return nil, err
	}
	return &watchedListener{l, p.w}, nil
}

func (p *watchedProvider) Resolve(ctx context.Context, a netip.AddrPort) (rdma.Endpoint, error) {
	e, err := p.Provider.Resolve(ctx, a)
	if err != nil {
		return nil, err
	}
	return &watchedEndpoint{Endpoint: e, w: p.w}, nil
}

type watchedListener struct {
	rdma.Listener
	w *watch
}

func (l *watchedListener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	e, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedEndpoint{Endpoint: e, w: l.w}, nil
}

type watchedEndpoint struct {
	rdma.Endpoint
	w  *watch
	qp *watchedQP
}

// Device gives the same one each time: users compare it.
func (e *watchedEndpoint) Device() rdma.Device {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.dev == nil {
		e.w.dev = &watchedDevice{e.Endpoint.Device(), e.w}
	}
	return e.w.dev
}

func (e *watchedEndpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	c.SendCQ, c.RecvCQ = c.SendCQ.(*watchedCQ).CompletionQueue, c.RecvCQ.(*watchedCQ).CompletionQueue
	qp, err := e.Endpoint.CreateQP(c)
	if err != nil {
		return nil, err
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.qp = &watchedQP{QueuePair: qp, w: e.w}
	e.w.qps[qp.Num()] = e.qp
	return e.qp, nil
}

func (e *watchedEndpoint) Close() error {
	err := e.Endpoint.Close()
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.qp != nil {
		e.qp.closed = true
		e.qp.sends.posted, e.qp.recvs.posted = nil, nil
	}
	return err
}

type watchedDevice struct {
	rdma.Device
	w *watch
}

func (d *watchedDevice) Limits() rdma.Limits {
	l := d.Device.Limits()
	if o := &d.w.limits; o.MaxMessage > 0 {
		l.MaxMessage, l.MaxSGE, l.MaxReadSGE = o.MaxMessage, o.MaxSGE, o.MaxReadSGE
	}
	return l
}

func (d *watchedDevice) NewCQ(depth int) (rdma.CompletionQueue, error) {
	c, err := d.Device.NewCQ(depth)
	if err != nil {
		return nil, err
	}
	return &watchedCQ{CompletionQueue: c, w: d.w}, nil
}

func (d *watchedDevice) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	mr, err := d.Device.Register(mem, access)
	if err != nil {
		return nil, err
	}
	r := &watchedRegion{MemoryRegion: mr, w: d.w, mem: mem}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.regions = append(d.w.regions, r)
	return r, nil
}

// A watchedRegion knows what of it has been offered to the peer.
type watchedRegion struct {
	rdma.MemoryRegion
	w      *watch
	mem    []byte
	offers []*offer
}

// An offer is the memory of one command, which the peer may use until it has answered.
type offer struct {
	region *watchedRegion
	itt    uint32
	off, n uint64
	write  bool   // the peer may write it; else read
	ended  bool   // the response has come
	sum    uint32 // of the memory: when it was offered, or if ended, when the response came
	before []byte // what it held when it was offered, for faults
	stale  *offer // an earlier one of the same memory, for faults
}

func (o *offer) mem() []byte { return o.region.mem[o.off : o.off+o.n] }

func (o *offer) overlaps(off, n uint64) bool { return o.off < off+n && off < o.off+o.n }

func (r *watchedRegion) Deregister() error {
	r.w.mu.Lock()
	for _, q := range r.w.qps {
		if i := slices.IndexFunc(append(slices.Clone(q.sends.posted), q.recvs.posted...), r.usedBy); i >= 0 {
			r.w.failf("queue pair %#x: memory is deregistered, but a work request that uses it has not ended", q.Num())
		}
	}
	r.w.faults.place()
	for _, o := range r.offers {
		r.w.unchanged(o)
	}
	r.w.regions = slices.DeleteFunc(r.w.regions, func(x *watchedRegion) bool { return x == r })
	r.w.mu.Unlock()
	return r.MemoryRegion.Deregister()
}

func (r *watchedRegion) usedBy(p post) bool {
	return slices.ContainsFunc(p.sgl, func(e rdma.SGE) bool { return e.Length > 0 && e.LKey == r.LKey() })
}

// unchanged checks the memory of an offer that has ended.
func (w *watch) unchanged(o *offer) {
	if !o.ended {
		return // the peer may use it until the connection is gone
	}
	w.checks.ended++
	if crc32.Checksum(o.mem(), castagnoli) != o.sum {
		w.failf("%d bytes of command %08x were touched after its response", o.n, o.itt)
	}
}

// offered notes that a command is sent that offers memory.
func (w *watch) offered(itt uint32, write bool, key uint32, addr uint64, n uint32) {
	i := slices.IndexFunc(w.regions, func(r *watchedRegion) bool { return r.RKey() == key })
	if i < 0 {
		w.failf("command %08x offers memory with the unknown key %#x", itt, key)
		return
	}
	r := w.regions[i]
	o := &offer{region: r, itt: itt, off: addr - r.Addr(), n: uint64(n), write: write}
	if o.off > uint64(len(r.mem)) || o.n > uint64(len(r.mem))-o.off {
		w.failf("command %08x offers %d bytes at %#x, beyond its region", itt, n, addr)
		return
	}
	w.checks.offers++
	r.offers = slices.DeleteFunc(r.offers, func(old *offer) bool {
		if !old.overlaps(o.off, o.n) {
			return false
		}
		if !old.ended {
			w.failf("command %08x offers memory of command %08x, which has not been answered", itt, old.itt)
		}
		// Write data was put there before the command was sent; read data is only put there by the peer.
		if old.write {
			w.unchanged(old)
		}
		w.faults.offered(o, old)
		return true
	})
	o.sum = crc32.Checksum(o.mem(), castagnoli)
	w.faults.offered(o, nil)
	r.offers = append(r.offers, o)
}

// answered notes that a command's response has come.
func (w *watch) answered(itt uint32) {
	for _, r := range w.regions {
		for _, o := range r.offers {
			if o.itt != itt || o.ended {
				continue
			}
			w.faults.answered(o)
			sum := crc32.Checksum(o.mem(), castagnoli)
			if !o.write && sum != o.sum {
				w.failf("the data of command %08x changed while the peer could read it", itt)
			}
			o.sum, o.ended = sum, true
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A post is a work request that has not ended.
type post struct {
	id       uint64 // ours: users have one for several work requests
	user     uint64 // the user's
	signaled bool
	op       rdma.OpCode // 0: a receive
	sgl      []rdma.SGE
	sum      uint32 // of what a Send reads
	before   []byte // what an RDMA Read will overwrite, for faults
}

// A workQueue is one of a queue pair's.
type workQueue struct {
	posted []post
	failed bool // an error completion has come
}

type watchedQP struct {
	rdma.QueuePair
	w            *watch
	sends, recvs workQueue
	closed       bool
}

func (q *watchedQP) PostSend(wrs []rdma.SendWR) (int, error) {
	wrs = slices.Clone(wrs)
	q.w.mu.Lock()
	for i := range wrs {
		wr := &wrs[i]
		p := post{id: q.w.next(), user: wr.ID, signaled: wr.Flags&rdma.Signaled != 0, op: wr.Op, sgl: slices.Clone(wr.SGL)}
		if isSend(wr.Op) {
			p.sum = q.w.sum(wr.SGL)
		}
		q.w.faults.posting(q.w, &p)
		q.sends.posted = append(q.sends.posted, p)
		wr.ID = p.id
	}
	q.w.mu.Unlock()
	n, err := q.QueuePair.PostSend(wrs)
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.sends.drop(len(wrs) - n)
	for i := range wrs[:n] {
		if isSend(wrs[i].Op) {
			q.w.sending(q.w.first(wrs[i].SGL))
		}
	}
	q.w.faults.posted(q.w, wrs[:n])
	return n, err
}

func (q *watchedQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	wrs = slices.Clone(wrs)
	q.w.mu.Lock()
	for i := range wrs {
		wr := &wrs[i]
		p := post{id: q.w.next(), user: wr.ID, signaled: true, sgl: slices.Clone(wr.SGL)}
		q.recvs.posted = append(q.recvs.posted, p)
		wr.ID = p.id
	}
	q.w.mu.Unlock()
	n, err := q.QueuePair.PostRecv(wrs)
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.recvs.drop(len(wrs) - n)
	return n, err
}

func (w *watch) next() uint64 { w.serial++; return w.serial }

// drop forgets the last n posts: they were not taken.
func (u *workQueue) drop(n int) {
	if len(u.posted) >= n { // else the queue pair has been closed meanwhile
		u.posted = u.posted[:len(u.posted)-n]
	}
}

func isSend(op rdma.OpCode) bool { return op == rdma.OpSend || op == rdma.OpSendInv }

// bytes is the memory that e names.
func (w *watch) bytes(e rdma.SGE) []byte {
	for _, r := range w.regions {
		if off := e.Addr - r.Addr(); r.LKey() == e.LKey && off <= uint64(len(r.mem)) && uint64(e.Length) <= uint64(len(r.mem))-off {
			return r.mem[off : off+uint64(e.Length)]
		}
	}
	w.failf("a work request names memory that is not registered: %+v", e)
	return nil
}

// first is the memory that the first entry names: a PDU's header never spans two.
func (w *watch) first(sgl []rdma.SGE) []byte {
	if len(sgl) == 0 {
		return nil
	}
	return w.bytes(sgl[0])
}

func (w *watch) sum(sgl []rdma.SGE) (sum uint32) {
	for _, e := range sgl {
		sum = crc32.Update(sum, castagnoli, w.bytes(e))
	}
	return sum
}

// pdu takes the iSER header off a message.
func pdu(b []byte) (h iser.Header, bhs *[iscsi.BHSSize]byte, ok bool) {
	rest, err := h.Parse(b)
	if err != nil || len(rest) < iscsi.BHSSize {
		return h, nil, false
	}
	return h, (*[iscsi.BHSSize]byte)(rest), true
}

const offEDTL = 20 // expected data transfer length in a SCSI Command's BHS

// sending looks for a command in what is sent.
func (w *watch) sending(b []byte) {
	h, bhs, ok := pdu(b)
	if !ok || iscsi.OpcodeOf(bhs) != iscsi.OpSCSICommand {
		return
	}
	n := binary.BigEndian.Uint32(bhs[offEDTL:])
	if h.Flags&iser.ReadValid != 0 {
		w.offered(iscsi.ITTOf(bhs), true, h.ReadSTag, h.ReadBase, n)
	}
	if h.Flags&iser.WriteValid != 0 {
		w.offered(iscsi.ITTOf(bhs), false, h.WriteSTag, h.WriteBase, n-w.unsolicited(bhs, n))
	}
}

// unsolicited is how much of a write's n bytes goes before the part that is offered: with the command if that is
// final, else as much as negotiated (RFC 7143, 11.3.4).
func (w *watch) unsolicited(bhs *[iscsi.BHSSize]byte, n uint32) uint32 {
	if iscsi.IsFinal(bhs) {
		return iscsi.DataLengthOf(bhs)
	}
	return min(n, w.burst)
}

// received looks for a response in what has come.
func (w *watch) received(b []byte) {
	if _, bhs, ok := pdu(b); ok && iscsi.OpcodeOf(bhs) == iscsi.OpSCSIResponse {
		w.answered(iscsi.ITTOf(bhs))
	}
}

type watchedCQ struct {
	rdma.CompletionQueue
	w *watch
}

func (c *watchedCQ) Poll(cs []rdma.Completion) (int, error) {
	n, err := c.CompletionQueue.Poll(cs)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.faults.polled(c.w, cs[:n])
	for i := range cs[:n] {
		c.w.completed(&cs[i])
	}
	return n, err
}

func (w *watch) completed(c *rdma.Completion) {
	w.checks.completions++
	q := w.qps[c.QPNum]
	if q == nil || q.closed {
		w.failf("queue pair %#x: completion %+v, but it is closed", c.QPNum, *c)
		return
	}
	u, what := &q.sends, "send"
	if c.Recv {
		u, what = &q.recvs, "receive"
	}
	if c.Status == rdma.Success && u.failed {
		w.failf("queue pair %#x: a %s succeeded after one that failed: %+v", c.QPNum, what, *c)
	}
	p, err := u.take(c)
	u.failed = u.failed || c.Status != rdma.Success
	if err != nil {
		w.failf("queue pair %#x, %s queue: %v", c.QPNum, what, err)
		return
	}
	c.ID = p[len(p)-1].user
	for i := range p {
		if isSend(p[i].op) {
			w.checks.sends++
			if w.sum(p[i].sgl) != p[i].sum {
				w.failf("queue pair %#x: what Send %#x reads has changed before it has completed", c.QPNum, p[i].id)
			}
		}
	}
	if c.Recv && c.Status == rdma.Success {
		if b := w.first(p[0].sgl); uint64(len(b)) >= uint64(c.ByteLen) {
			w.received(b[:c.ByteLen])
		}
	}
}

// take takes the work requests that a completion ends: those without one of their own, and that which it names. After
// an error each has one.
func (u *workQueue) take(c *rdma.Completion) ([]post, error) {
	for i, p := range u.posted {
		if p.id == c.ID {
			ended := u.posted[:i+1]
			u.posted = u.posted[i+1:]
			return ended, nil
		}
		if p.signaled || u.failed {
			return nil, fmt.Errorf("%#x ended, but %#x was to end before", c.ID, p.id)
		}
	}
	return nil, fmt.Errorf("%#x ended, which was not posted or has ended before", c.ID)
}
