package cm

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// A Manager is the state of all connections of one local address (IBTA 12.9). It has no goroutine, socket, lock or
// clock: Step takes an event and the time and returns what to do. An established connection is one whose queue pair
// may send; what the queue pair does is not the manager's business.
//
//	active:   Connect ─► reqSent ─── REP ──► established ─► dreqSent ─► timeWait ─► gone
//	passive:  REQ ─► requested ─ Accept ─► repSent ─ RTU, traffic ─┘            ▲
//	                     └── Reject ────────────────────────────────────────────┘
type Manager struct {
	cfg Config
	now time.Time
	out []Action

	nextID    uint32
	nextTID   uint64
	conns     map[uint32]*Conn // by our communication id
	byPeer    map[peerID]*Conn
	byQPN     map[peerQPN]*Conn
	listening map[uint16]*int // half-open requests, by port
	halfOpen  map[netip.Addr]int
	waiting   []*Conn // in timeWait, the oldest first; a bounded ring of the ids that are not used again yet
	next      time.Time
	c         Counters
}

// Config sets up a Manager.
type Config struct {
	GUID uint64     // of this instance, random: what a peer remembers of an earlier one does not concern us (ROCE.md 4.8)
	Addr netip.Addr // ours, as peers see it
	// MTU is the largest path MTU to an address, in bytes.
	MTU  func(to netip.Addr) int
	Rand *rand.Rand
}

// Bounds on what peers can make us keep.
const (
	// MaxHalfOpen is how many requests a port may have that are not established yet, MaxHalfOpenPeer the same of one
	// address. More are dropped: the peer asks again.
	MaxHalfOpen     = 256
	MaxHalfOpenPeer = 64
	// MaxConns bounds the connections of an address, those in timeWait not counted. More requests are refused.
	MaxConns = 8192
	// maxWaiting bounds those; the oldest is forgotten early, for a DREQ with an unknown id is answered, too.
	maxWaiting = 1024
)

// How long and how often. Linux takes any interval: a repeated REQ or REP is answered, never acted on twice.
const (
	firstInterval = 250 * time.Millisecond
	maxInterval   = 4 * time.Second
	requestTries  = 9 // of a REQ: 24 s, which is longer than a login waits
	replyTries    = 9
	leaveTries    = 5 // of a DREQ; nobody waits for its answer
	timeWait      = 4 * time.Second
	// maxService bounds what a peer's MRA can make us wait, serviceCode is what ours asks for: 17 s.
	maxService  = 60 * time.Second
	serviceCode = 22
	// responseCode tells the peer how long an answer of ours takes: 4.3 s, as Linux says, maxCMRetries how often to ask.
	responseCode = 20
	maxCMRetries = 15
	hopLimit     = 64
)

// tcpPortSpace is the service id of port 0 in the RDMA CM's TCP port space (IBTA A11.2).
const tcpPortSpace = 0x0000000001060000

// infinite is the RNR retry count without limit.
const infinite = 7

type peerID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

// Peers' queue pairs are told apart by address, too: a GUID is what its sender says, the address what it can receive at.
type peerQPN struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

type state uint8

const (
	idle state = iota
	reqSent
	requested
	repSent
	established
	dreqSent
	waiting
	gone
)

// A Conn is one connection. Its exported fields are the manager's to write after Connect or NewRequest.
type Conn struct {
	Peer netip.Addr
	REQ  REQ // sent or received
	REP  REP // received or sent
	User any // the caller's

	active      bool
	state       state
	id, peerID  uint32
	peerGUID    uint64
	peerQPN     uint32
	transaction uint64
	mad         [MADSize]byte // the last message that is sent again
	hasAnswer   bool          // mad answers the peer's REQ, should it come again
	tries       int
	interval    time.Duration
	deadline    time.Time
}

// ID is our communication id of the connection.
func (c *Conn) ID() uint32 { return c.id }

// Counters only grow.
type Counters struct {
	Received, Sent uint64 // messages
	Malformed      uint64 // not a message of the connection manager
	Dropped        uint64 // of no connection, or not what its state can take
	Flooded        uint64 // requests beyond the bounds on half-open ones
	Refused        uint64 // requests refused without asking anybody
	Duplicates     uint64
	Repeated       uint64 // messages sent again
	Stale          uint64 // connections ended because their peer has forgotten them
}

// New makes a manager without connections. Its ids start at random, so that a peer which remembers those of an earlier
// instance does not take ours for them (ROCE.md 4.8).
func New(c Config) *Manager {
	return &Manager{
		cfg: c, nextID: c.Rand.Uint32(), nextTID: c.Rand.Uint64(),
		conns: make(map[uint32]*Conn), byPeer: make(map[peerID]*Conn), byQPN: make(map[peerQPN]*Conn),
		listening: make(map[uint16]*int), halfOpen: make(map[netip.Addr]int),
	}
}

// Counters are those so far.
func (m *Manager) Counters() Counters { return m.c }

// Deadline is when Step must be called with a Tick next, zero for never. It may be too early, never too late.
func (m *Manager) Deadline() time.Time { return m.next }

// Step takes an event and returns what to do about it, in order. It is the only writer of the manager's state. The
// actions are the caller's.
func (m *Manager) Step(now time.Time, ev Event) []Action {
	m.now, m.out = now, nil
	switch e := ev.(type) {
	case Packet:
		m.packet(e)
	case Connect:
		m.connect(e.Conn)
	case Accept:
		m.accept(e.Conn, e.REP)
	case Reject:
		m.reject(e.Conn, e.Reason, e.Private)
	case Confirm:
		m.confirm(e.Conn)
	case Disconnect:
		m.disconnect(e.Conn)
	case Listen:
		if m.listening[e.Port] == nil {
			m.listening[e.Port] = new(int)
		}
	case Unlisten:
		delete(m.listening, e.Port)
	case Tick:
		m.tick()
	}
	return m.out
}

// packet takes a management datagram.
func (m *Manager) packet(e Packet) {
	m.c.Received++
	h, body, err := ParseHeader(e.MAD)
	if err != nil {
		m.c.Malformed++
		return
	}
	from, tid := e.From.Unmap(), h.Transaction
	switch h.Attribute {
	case AttrREQ:
		m.onREQ(from, tid, body)
	case AttrREP:
		m.onREP(from, tid, body)
	case AttrRTU:
		m.onRTU(from, body)
	case AttrREJ:
		m.onREJ(from, body)
	case AttrMRA:
		m.onMRA(from, body)
	case AttrDREQ:
		m.onDREQ(from, tid, body)
	case AttrDREP:
		m.onDREP(from, body)
	default: // alternate paths and service id resolution, which RoCE does without
		m.c.Dropped++
	}
}

// find is the connection of our id, if it is from's.
func (m *Manager) find(from netip.Addr, id uint32) *Conn {
	if c := m.conns[id]; c != nil && c.Peer == from {
		return c
	}
	return nil
}

// add gives a connection our id, the next that is free. MaxConns and maxWaiting leave nearly all of them free.
func (m *Manager) add(c *Conn) {
	for m.nextID == 0 || m.conns[m.nextID] != nil {
		m.nextID++
	}
	c.id = m.nextID
	m.nextID++
	m.conns[c.id] = c
}

// meet notes what the peer calls its side of a connection. A live connection that has the same queue pair at the peer
// is one that the peer has forgotten (ROCE.md 4.6, rule 2).
func (m *Manager) meet(c *Conn, guid uint64, id, qpn uint32) {
	q := peerQPN{c.Peer, guid, qpn}
	for _, old := range []*Conn{m.byQPN[q], m.byPeer[peerID{c.Peer, guid, id}]} {
		if old != nil && old != c {
			m.stale(old)
		}
	}
	c.peerGUID, c.peerID, c.peerQPN = guid, id, qpn
	m.byPeer[peerID{c.Peer, guid, id}] = c
	m.byQPN[q] = c
}

func (m *Manager) stale(c *Conn) {
	if c.state != waiting {
		m.c.Stale++
		m.do(Action{Kind: Disconnected, Conn: c})
	}
	m.remove(c)
}

// remove forgets a connection: its ids are free.
func (m *Manager) remove(c *Conn) {
	if c.state == gone {
		return
	}
	m.set(c, gone)
	delete(m.conns, c.id)
	if p := (peerID{c.Peer, c.peerGUID, c.peerID}); m.byPeer[p] == c {
		delete(m.byPeer, p)
	}
	if q := (peerQPN{c.Peer, c.peerGUID, c.peerQPN}); m.byQPN[q] == c {
		delete(m.byQPN, q)
	}
	m.do(Action{Kind: Freed, Conn: c})
}

// set changes the state, keeps count of the half-open and stops the timer.
func (m *Manager) set(c *Conn, s state) {
	if d := half(s) - half(c.state); d != 0 && !c.active {
		m.halfOpen[c.Peer] += d
		if m.halfOpen[c.Peer] == 0 {
			delete(m.halfOpen, c.Peer)
		}
		if n := m.listening[servicePort(&c.REQ)]; n != nil {
			*n = max(0, *n+d) // a port that was closed and opened again counts from 0
		}
	}
	c.state, c.deadline = s, time.Time{}
}

func half(s state) int {
	if s == requested || s == repSent {
		return 1
	}
	return 0
}

// wait keeps the ids of an ended connection for a while, to answer what is repeated.
func (m *Manager) wait(c *Conn) {
	m.set(c, waiting)
	m.arm(c, timeWait)
	if m.waiting = append(m.waiting, c); len(m.waiting) > maxWaiting {
		m.remove(m.waiting[0])
		m.waiting = slices.Delete(m.waiting, 0, 1)
	}
}

// arm sets a connection's deadline.
func (m *Manager) arm(c *Conn, d time.Duration) {
	c.deadline = m.now.Add(d)
	if m.next.IsZero() || c.deadline.Before(m.next) {
		m.next = c.deadline
	}
}

// begin sends c.mad now and again until stopped.
func (m *Manager) begin(c *Conn, s state, tries int) {
	m.set(c, s)
	c.tries, c.interval = tries-1, firstInterval
	m.arm(c, c.interval)
	m.send(c)
}

// tick acts on deadlines that have passed, in the order of ids.
func (m *Manager) tick() {
	var due []*Conn
	for _, c := range m.conns {
		if !c.deadline.IsZero() && !c.deadline.After(m.now) {
			due = append(due, c)
		}
	}
	slices.SortFunc(due, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
	for _, c := range due {
		m.expire(c)
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(c *Conn) bool { return c.state == gone })
	m.next = time.Time{}
	for _, c := range m.conns {
		if d := c.deadline; !d.IsZero() && (m.next.IsZero() || d.Before(m.next)) {
			m.next = d
		}
	}
}

// expire repeats a message, or gives up.
func (m *Manager) expire(c *Conn) {
	if c.state == waiting {
		m.remove(c)
		return
	}
	if c.tries > 0 {
		c.tries--
		c.interval = min(2*c.interval, maxInterval)
		m.arm(c, c.interval)
		m.c.Repeated++
		m.send(c)
		return
	}
	switch c.state {
	case reqSent:
		m.do(Action{Kind: Unreachable, Conn: c})
		m.giveUp(c)
	case repSent:
		m.sendREJ(c.Peer, c.transaction, &REJ{LocalID: c.id, RemoteID: c.peerID, About: AboutREP, Reason: ReasonTimeout, GUID: m.cfg.GUID})
		m.do(Action{Kind: Disconnected, Conn: c})
		m.wait(c)
	default:
		m.wait(c)
	}
}

func (m *Manager) do(a Action) { m.out = append(m.out, a) }

// send sends a connection's message.
func (m *Manager) send(c *Conn) { m.sendMAD(c.Peer, c.mad) }

func (m *Manager) sendMAD(to netip.Addr, mad [MADSize]byte) {
	m.c.Sent++
	m.do(Action{Kind: SendMAD, To: to, MAD: &mad})
}

func (m *Manager) sendREJ(to netip.Addr, tid uint64, r *REJ) {
	var mad [MADSize]byte
	r.Put(&mad, tid)
	m.sendMAD(to, mad)
}

// transaction is a new transaction id.
func (m *Manager) transaction() uint64 {
	m.nextTID++
	return m.nextTID
}
