package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// Options of New; the zero value will do.
type Options struct {
	// Limit is how long the file may get, in bytes; 0: as long as it will. Packets that would make it longer are
	// counted and not written.
	Limit int64
	// Queue is how many bytes of packets may wait to be written; 0: DefaultQueue. It takes twice the memory.
	Queue int
	// Application is who writes, for the file's header.
	Application string
}

const (
	// DefaultQueue holds what loopback carries at best in 3 ms.
	DefaultQueue = 8 << 20
	// MinLimit is the least Options.Limit: a few packets and what says whose they are.
	MinLimit = 64 << 10
	// maxInterfaces bounds the local addresses of one capture. They are ours, so nobody can make more of them.
	maxInterfaces = 1 << 10
	// closePatience is how long Close waits for a pipe that nobody empties.
	closePatience = 5 * time.Second
	// flushDelay is how long packets wait for others to be written with, and flushSize how many bytes of them there
	// are at most until they wait no longer: to wake the writer for each run would take the processor from the data path.
	flushDelay = 10 * time.Millisecond
	flushSize  = 256 << 10
)

// Counters of a Capture.
type Counters struct {
	Packets uint64 // seen
	Dropped uint64 // of these, not in the file: no room in the queue, beyond the limit, or after a write error
	Bytes   int64  // of the file
}

// A Capture writes what it sees to a file. It implements link.Watcher.
type Capture struct {
	w     io.Writer
	o     Options
	start time.Time
	wake  chan struct{} // there is something to write
	many  chan struct{} // there is much, or Close waits
	done  chan struct{} // the writer has ended

	mu       sync.Mutex // guards what follows; held for as long as copying a run of packets takes
	buf      []byte     // whole blocks that wait to be written; its capacity is the bound
	spare    []byte     // what the next buf will be; without meaning while the writer has it
	index    map[netip.Addr]*iface
	ifaces   []*iface
	waiting  uint64 // packets in buf
	size     int64  // of the file, buf and what is being written included
	counters Counters
	closed   bool
	full     bool // the limit has been reached
	err      error
}

// An iface is a link: a local address.
type iface struct {
	number           uint32
	packets, dropped uint64
	lost             uint64 // of the link, at its last packet
	untold           uint64 // dropped and lost since the last packet in the file
}

// New starts a file with its header. A w that can be truncated is cut after its last whole block when writing fails.
func New(w io.Writer, o Options) (*Capture, error) {
	if o.Queue <= 0 {
		o.Queue = DefaultQueue
	}
	if o.Limit != 0 && o.Limit < MinLimit {
		return nil, fmt.Errorf("capture: a limit of %d bytes: the least is %d", o.Limit, MinLimit)
	}
	head := appendSection(nil, o.Application)
	if _, err := w.Write(head); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	c := &Capture{
		w: w, o: o, start: time.Now(), wake: make(chan struct{}, 1), many: make(chan struct{}, 1), done: make(chan struct{}),
		buf: make([]byte, 0, o.Queue), spare: make([]byte, 0, o.Queue), index: map[netip.Addr]*iface{}, size: int64(len(head)),
	}
	c.counters.Bytes = c.size
	go c.write()
	return c, nil
}

// See implements link.Watcher. It allocates nothing but for the first packet of an address.
func (c *Capture) See(s link.Sight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	f := c.iface(s.Link)
	if f == nil {
		n := uint64((len(s.Data) + s.Size - 1) / s.Size)
		c.counters.Packets += n
		c.counters.Dropped += n
		return
	}
	if f.packets > 0 {
		f.untold += s.Lost - f.lost
	}
	f.lost = s.Lost
	now := c.now()
	for i, b := uint16(0), s.Data; len(b) > 0; i++ {
		n := min(len(b), s.Size)
		c.packet(f, now, &s, b[:n], i)
		b = b[n:]
	}
	if len(c.buf) > 0 {
		signal(c.wake)
	}
	if len(c.buf) >= min(flushSize, cap(c.buf)/2) {
		signal(c.many)
	}
}

// signal tells the writer, unless it has been told and has not looked yet.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// now is the wall clock's time when the capture began, and what has passed since: it never goes back.
func (c *Capture) now() time.Time { return c.start.Add(time.Since(c.start)) }

// room reports whether a block of n bytes can be written.
func (c *Capture) room(n int) bool {
	if c.full || c.err != nil {
		return false
	}
	if c.o.Limit > 0 && c.size+int64(n)+int64(statisticsSize*(len(c.ifaces)+1)) > c.o.Limit {
		c.full = true // for good: a file with a gap in it that nobody told of would be misread
		return false
	}
	return len(c.buf)+n <= cap(c.buf)
}

// interfaceRoom bounds an interface's description.
const interfaceRoom = 256

// iface is that of a local address, described to the file if it is new; nil if there is no room for it.
func (c *Capture) iface(addr netip.Addr) *iface {
	if f := c.index[addr]; f != nil {
		return f
	}
	if len(c.ifaces) >= maxInterfaces || !c.room(interfaceRoom) {
		return nil
	}
	f := &iface{number: uint32(len(c.ifaces))}
	c.index[addr] = f
	c.ifaces = append(c.ifaces, f)
	before := len(c.buf)
	c.buf = appendInterface(c.buf, addr)
	c.size += int64(len(c.buf) - before)
	return f
}

func (c *Capture) packet(f *iface, now time.Time, s *link.Sight, p []byte, i uint16) {
	f.packets++
	c.counters.Packets++
	if !c.room(packetRoom + len(p)) {
		f.dropped++
		f.untold++
		c.counters.Dropped++
		return
	}
	before := len(c.buf)
	c.buf = appendPacket(c.buf, f.number, now, s, p, i, f.untold)
	f.untold = 0
	c.waiting++
	c.size += int64(len(c.buf) - before)
}

// write is the writer: it takes all that waits, whole blocks, and writes them at once.
func (c *Capture) write() {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for range c.wake {
		timer.Reset(flushDelay)
		select {
		case <-c.many:
		case <-timer.C:
		}
		c.flush()
	}
	c.flush()
}

// flush writes what waits.
func (c *Capture) flush() {
	c.mu.Lock()
	b, packets, failed := c.buf, c.waiting, c.err != nil
	c.buf, c.waiting = c.spare, 0
	c.mu.Unlock()
	var n int
	var err error
	if !failed && len(b) > 0 {
		if n, err = c.w.Write(b); err != nil {
			n = c.cut(b, n)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spare = b[:0]
	c.counters.Bytes += int64(n)
	if err != nil {
		c.err = fmt.Errorf("capture: %w", err)
	}
	if failed || err != nil {
		c.counters.Dropped += packets // some may be there, as far as can be known
	}
}

// cut takes back what a failed write has left of a block, if the file lets it: n bytes of b were written. It returns
// how many remain.
func (c *Capture) cut(b []byte, n int) int {
	whole := 0
	for whole < n {
		size := int(binary.LittleEndian.Uint32(b[whole+4:]))
		if whole+size > n {
			break
		}
		whole += size
	}
	if t, ok := c.w.(interface{ Truncate(size int64) error }); ok {
		if t.Truncate(c.Counters().Bytes+int64(whole)) == nil {
			return whole
		}
	}
	return n
}

// Counters are those so far.
func (c *Capture) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counters
}

// Close writes what waits and each interface's statistics, and returns the first error of writing. What is seen
// afterwards is ignored. It does not close the file. Closing again does nothing.
func (c *Capture) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	if d, ok := c.w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(closePatience)) // an ordinary file has none and needs none
	}
	signal(c.many)
	close(c.wake)
	<-c.done
	c.end()
	return c.err
}

// end writes the statistics of all interfaces.
func (c *Capture) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	b := c.buf[:0]
	for _, f := range c.ifaces {
		b = appendStatistics(b, f.number, c.now(), f.packets, f.dropped)
	}
	n, err := c.w.Write(b)
	c.counters.Bytes += int64(n)
	if err != nil {
		c.err = fmt.Errorf("capture: %w", err)
	}
}
