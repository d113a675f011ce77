package target

import (
	"sync"

	"github.com/goiser/goiser/iscsi/arena"
)

// Data buffers, and why waiting for them cannot deadlock.
//
// Immediate data and unsolicited Data-Out come when the initiator likes, and stand in the byte stream
// before everything else that it sends: they must have a place at once, or else data that other tasks
// wait for could not be read any more. So the pool is cut in two.
//
//   - The reserve, half of the pool, is taken when the server starts. A session gets a part of it at
//     login, one piece for each slot of its command window, and its window is as large as that part
//     allows. A write takes its piece when it arrives and gives it back before its slot opens again, so
//     that a piece is always there: nobody ever waits for the reserve.
//   - The rest serves what is fetched from the initiator and what is read from a store. A task asks for
//     all that it needs, once, holding nothing of this half, and waits in the order of asking.
//
// A task that has got its buffers needs only the peer (bounded by dataTimeout and the ping), a worker
// (which never waits for memory) and the store to give them back. Therefore every waiter's turn comes,
// as long as nobody asks for more than there is: transfers are bounded by the second half. Immediate
// commands, which the window does not bound, have no piece: those that bring data unasked get all that they
// need at once or TASK SET FULL, and the others, at most spareTasks of a session, wait as all do.
//
// A command that is held back behind others of its unit (scsi, taskset.go) comes before all this: it
// holds its window slot and that slot's piece, and asks for the second half only when it may go on. What
// it waits for has arrived before it and is either held back too, behind still older ones, or needs
// nothing but what is said above: never a slot, since it has one, and never what a held command holds.
// The older command's data may come behind the held one's in the byte stream, which is read on all the
// same. So the oldest command of a unit always ends, and with it everyone's turn comes.
const (
	// shareOfReserve is how much of the unused reserve one session gets at most (1/8), so that many
	// sessions still find something. Besides, where the reserve has two pieces for each session that there may be,
	// one is left for each that may still come: else the first forty would leave nothing.
	shareOfReserve = 8
	// pieceAlign keeps pieces page-aligned.
	pieceAlign = 4096
)

// A reserve is the part of the pool that sessions own.
type reserve struct {
	pool     *arena.Pool
	sessions int // that there may be
	size     int // chunks, free or not

	mu     sync.Mutex
	chunks [][]byte // free
	taken  int      // sessions that have some
}

func newReserve(pool *arena.Pool, limitChunks int) *reserve {
	r := &reserve{pool: pool}
	// A pool that is in use already gives less.
	for n := min(pool.Chunks()/2, limitChunks); n > 0 && len(r.chunks) == 0; n /= 2 {
		r.chunks, _ = pool.Get(nil, n*arena.ChunkSize)
	}
	r.size = len(r.chunks)
	return r
}

// close gives the reserve back. No session may hold any of it.
func (r *reserve) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool.Put(r.chunks)
	r.chunks = nil
}

// A piece is the memory of one window slot, as a list of buffers.
type piece [][]byte

// sessionMemory is a session's part of the reserve.
type sessionMemory struct {
	chunks [][]byte
	unit   int // bytes of a piece
	free   []piece
}

// take makes want pieces of at least unit bytes, or as many as the session may have.
func (r *reserve) take(unit, want int) *sessionMemory {
	unit = (max(unit, 1) + pieceAlign - 1) &^ (pieceAlign - 1)
	perChunk := max(1, arena.ChunkSize/unit)
	perPiece := (unit + arena.ChunkSize - 1) / arena.ChunkSize
	need := (want + perChunk - 1) / perChunk * perPiece

	r.mu.Lock()
	defer r.mu.Unlock()
	share := len(r.chunks) / shareOfReserve
	if r.size >= 2*r.sessions*perPiece {
		share = min(share, len(r.chunks)-max(r.sessions-r.taken-1, 0)*perPiece)
	}
	n := min(need, max(perPiece, share), len(r.chunks))
	if n -= n % perPiece; n > 0 {
		r.taken++
	}
	m := &sessionMemory{unit: unit, chunks: make([][]byte, n)}
	copy(m.chunks, r.chunks[len(r.chunks)-n:])
	r.chunks = r.chunks[:len(r.chunks)-n]
	for i := 0; i+perPiece <= n; i += perPiece {
		for j := range perChunk {
			if len(m.free) < want {
				m.free = append(m.free, cutPiece(m.chunks[i:i+perPiece], j*unit, unit))
			}
		}
	}
	return m
}

// cutPiece is bytes [off, off+n) of chunks.
func cutPiece(chunks [][]byte, off, n int) piece {
	var p piece
	for _, c := range chunks {
		part := c[off:min(len(c), off+n)]
		p, off, n = append(p, part[:len(part):len(part)]), 0, n-len(part)
	}
	return p
}

// put gives a session's part back.
func (r *reserve) put(m *sessionMemory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(m.chunks) > 0 {
		r.taken--
	}
	r.chunks = append(r.chunks, m.chunks...)
	m.chunks, m.free = nil, nil
}

func (m *sessionMemory) take() piece {
	if len(m.free) == 0 {
		panic("target: a command in the window found no memory")
	}
	p := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	return p
}

func (m *sessionMemory) put(p piece) {
	m.free = append(m.free, p)
}

// pieceSize is how many bytes of a write may come without being asked for, on any of the session's
// connections: each has its own MaxRecvData.
func (ses *session) pieceSize() int {
	n, p := uint32(0), &ses.params
	if p.ImmediateData {
		n = p.FirstBurstLength
		if !ses.shared {
			n = min(n, p.MaxRecvData)
		}
	}
	if !p.InitialR2T {
		n = p.FirstBurstLength
	}
	return int(n)
}

// appendPrefix appends the first n bytes of bufs to dst, as buffers.
func appendPrefix(dst, bufs [][]byte, n int) [][]byte {
	for _, b := range bufs {
		if n <= 0 {
			break
		}
		b = b[:min(len(b), n)]
		dst, n = append(dst, b), n-len(b)
	}
	return dst
}

// appendFrom appends what follows the first off bytes of bufs to dst, as buffers.
func appendFrom(dst, bufs [][]byte, off int) [][]byte {
	for _, b := range bufs {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		dst, off = append(dst, b[off:]), 0
	}
	return dst
}

// copyTo copies data into bufs from byte off on, as far as they reach.
func copyTo(bufs [][]byte, off int, data []byte) {
	for _, b := range bufs {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		n := copy(b[off:], data)
		if data = data[n:]; len(data) == 0 {
			return
		}
		off = 0
	}
}

func totalLen(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return n
}
