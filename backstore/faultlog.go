package backstore

import (
	"sync"
	"time"
)

// faultLogEntries is how many faults a FaultStore remembers; older ones are forgotten, and counted.
const faultLogEntries = 4096

// A Fault is one fault that was injected.
type Fault struct {
	// Sequence counts the store's faults from 1 on, forgotten ones too.
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Kind     FaultKind `json:"kind"`
	// Op is read, write, zero or flush.
	Op string `json:"op"`
	// Offset and Length are the bytes that suffered: those that were not written, read from elsewhere, or hold flipped
	// bits. Of a latency, an error or a stuck request they are the whole request's, of a flush 0.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	// Elsewhere is where misplaced bytes went or came from.
	Elsewhere int64 `json:"elsewhere,omitempty"`
	// Bits are those flipped, as bit numbers of the store: byte offset * 8 + bit, bit 0 being worth 1.
	Bits []int64 `json:"bits,omitempty"`
	// Delay is that of a latency.
	Delay time.Duration `json:"delay_ns,omitempty"`
	// Rule is the rule that did it.
	Rule string `json:"rule"`
}

// A faultLog is a ring of the last faults.
type faultLog struct {
	mu      sync.Mutex
	last    uint64
	entries []Fault // at Sequence % faultLogEntries once there are so many
}

func (l *faultLog) add(f Fault) {
	f.Time = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	f.Sequence = l.last
	if len(l.entries) < faultLogEntries {
		l.entries = append(l.entries, f)
		return
	}
	l.entries[(f.Sequence-1)%faultLogEntries] = f
}

func (l *faultLog) all() (list []Fault, forgotten uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.entries))
	for s := l.last - n; s < l.last; s++ {
		list = append(list, l.entries[s%faultLogEntries])
	}
	return list, l.last - n
}
