package target

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
)

// What is counted, and who counts it.
//
// What happens with every command is counted by the session, in sessionStats: only the loop that works on the session
// writes there, so that an addition finds its cache line at home; Stats adds up the sessions that there are and what
// those that have ended had counted. What is rare is counted by the server, under a lock, in tallies.

// Stats are a server's counters since it was made, and its gauges. Maps and arrays are the caller's.
type Stats struct {
	// Commands are those answered, by class and status. A status that SAM-5 does not have is counted as BUSY.
	Commands [scsi.Classes]map[scsi.Status]uint64
	// Aborted are those that ended without an answer.
	Aborted uint64
	// InFlight are those whose answer has not left yet.
	InFlight int
	// ReadBytes have been sent to initiators, WrittenBytes taken from them.
	ReadBytes, WrittenBytes uint64
	// Latency is how long commands took from their arrival until the answer had left: over TCP to the kernel, over iSER
	// to the initiator's device, which has acknowledged it.
	Latency [scsi.Classes]Latency
	// Store is how long the device server took for commands on stores that may block. Stores in memory are not in it.
	Store [scsi.Classes]Latency
	// Sense are CHECK CONDITIONs by sense key (SPC-4, 4.5.6).
	Sense [16]uint64
	// Dropped are requests outside the command window and duplicates.
	Dropped uint64
	// Rejects are PDUs rejected, Logins the ends of login phases, Functions those of task management.
	Rejects   map[iscsi.RejectReason]uint64
	Logins    map[iscsi.LoginStatus]uint64
	Functions map[Function]uint64
	// NoLogin are connections that ended before their login did.
	NoLogin uint64
	// LoggedOut, Closed and Lost are connections that ended in full-feature phase: by a logout, by us, by a failure.
	LoggedOut, Closed, Lost uint64
	// Sessions are those in full-feature phase, discovery sessions included; Connections all there are.
	Sessions, Connections int
	// FreeBuffers of Buffers bytes are neither in use nor set aside for a session.
	FreeBuffers, Buffers int64
	// Working are commands at work on stores that may block, of Workers that may be at once.
	Working, Workers int
}

// A Function is a task management function and how it was answered.
type Function struct {
	Function iscsi.TMFunction
	Response iscsi.TMResponse
}

// statuses are the status codes that are counted (SAM-5, 5.3.1).
var statuses = [...]scsi.Status{
	scsi.Good, scsi.Busy, scsi.CheckCondition, scsi.ConditionMet, scsi.ReservationConflict, scsi.TaskSetFull, scsi.ACAActive, scsi.TaskAborted,
}

// statusIndex has the place of each code in statuses; all others are BUSY.
var statusIndex = func() (index [256]uint8) {
	for i := range index {
		index[i] = 1
	}
	for i, s := range statuses {
		index[s] = uint8(i)
	}
	return index
}()

// sessionStats are a session's counters. The loop that works on the session writes them.
type sessionStats struct {
	answered                [scsi.Classes][len(statuses)]atomic.Uint64
	readBytes, writtenBytes atomic.Uint64
	latency                 [scsi.Classes]liveLatency
	inFlight                atomic.Int32
	sense                   [16]atomic.Uint64
	aborted, rejects        atomic.Uint64
	dropped                 atomic.Uint64
}

// answer counts a command that is answered.
func (st *sessionStats) answer(opcode, status uint8) {
	st.answered[scsi.ClassOf(opcode)][statusIndex[status]].Add(1)
}

// commands is how many commands have been answered, and how many of them not with GOOD.
func (st *sessionStats) commands() (all, errors uint64) {
	for c := range st.answered {
		for i := range statuses {
			n := st.answered[c][i].Load()
			all += n
			if statuses[i] != scsi.Good {
				errors += n
			}
		}
	}
	return all, errors
}

// addTo adds the counters to a sum.
func (st *sessionStats) addTo(s *Stats) {
	for c := range st.answered {
		for i := range statuses {
			if n := st.answered[c][i].Load(); n > 0 {
				s.count(scsi.Class(c), statuses[i], n)
			}
		}
		st.latency[c].addTo(&s.Latency[c])
	}
	for i := range st.sense {
		s.Sense[i] += st.sense[i].Load()
	}
	s.ReadBytes += st.readBytes.Load()
	s.WrittenBytes += st.writtenBytes.Load()
	s.Aborted += st.aborted.Load()
	s.Dropped += st.dropped.Load()
	s.InFlight += int(st.inFlight.Load())
}

func (s *Stats) count(c scsi.Class, status scsi.Status, n uint64) {
	if s.Commands[c] == nil {
		s.Commands[c] = make(map[scsi.Status]uint64)
	}
	s.Commands[c][status] += n
}

// add adds what sessions that have ended had counted.
func (s *Stats) add(o *Stats) {
	for c := range o.Commands {
		for status, n := range o.Commands[c] {
			s.count(scsi.Class(c), status, n)
		}
		s.Latency[c].Add(&o.Latency[c])
	}
	for i, n := range o.Sense {
		s.Sense[i] += n
	}
	s.ReadBytes += o.ReadBytes
	s.WrittenBytes += o.WrittenBytes
	s.Aborted += o.Aborted
	s.Dropped += o.Dropped
}

// tallies count what is rare. Their keys are few: our own answers, and with some the 7 bits of a function's code.
type tallies struct {
	mu                               sync.Mutex
	rejects                          map[iscsi.RejectReason]uint64
	logins                           map[iscsi.LoginStatus]uint64
	functions                        map[Function]uint64
	noLogin, loggedOut, closed, lost uint64
}

func (t *tallies) open() {
	t.rejects = make(map[iscsi.RejectReason]uint64)
	t.logins = make(map[iscsi.LoginStatus]uint64)
	t.functions = make(map[Function]uint64)
}

// count adds one to a tally.
func (t *tallies) count(f func(*tallies)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(t)
}

func (t *tallies) copyTo(s *Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Rejects, s.Logins, s.Functions = maps.Clone(t.rejects), maps.Clone(t.logins), maps.Clone(t.functions)
	s.NoLogin, s.LoggedOut, s.Closed, s.Lost = t.noLogin, t.loggedOut, t.closed, t.lost
}

// Stats reads the counters. It takes time with the number of sessions, and holds up logins meanwhile, but no command.
func (s *Server) Stats() Stats {
	st := s.sumSessions()
	s.tallies.copyTo(&st)
	free := s.c.Pool.Free() + s.reserve.free()
	st.FreeBuffers, st.Buffers = int64(free)*arena.ChunkSize, int64(s.c.Pool.Chunks())*arena.ChunkSize
	s.workers.statsTo(&st)
	return st
}

func (s *Server) sumSessions() (sum Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.add(&s.ended)
	for _, ses := range s.sessions {
		ses.stats.addTo(&sum)
	}
	sum.Sessions, sum.Connections = len(s.sessions), len(s.conns)
	return sum
}

func (r *reserve) free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.chunks)
}

func (w *workers) statsTo(s *Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Store, s.Working, s.Workers = w.took, w.running, w.limit
}
