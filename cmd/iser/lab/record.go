package lab

import (
	"sync"
	"time"
)

// An Event is one line of the time line.
type Event struct {
	// At is the virtual time since the recording began, in nanoseconds.
	At time.Duration `json:"at_ns"`
	// Where is whose end it happened at: "host 0", "target"; of a packet, who sent it.
	Where string `json:"where"`
	// What has happened: calls, returns (a user's command), posted, completed, delivered, placed, bound, invalidated (work
	// requests and memory), sent, arrives (packets), note, wrong (what a checker saw).
	What string `json:"what"`
	// Of is the operation, PDU or packet; Note says more.
	Of   string `json:"of,omitempty"`
	Note string `json:"note,omitempty"`
	// To is where a packet goes, and PSN its number.
	To  string `json:"to,omitempty"`
	PSN uint32 `json:"psn,omitempty"`
	// Tag, Key, Addr, Length (bytes) and Word (the first of the data, big-endian) are zero if there are none.
	Tag    uint32 `json:"tag,omitempty"`
	Key    uint32 `json:"key,omitempty"`
	Addr   uint64 `json:"addr,omitempty"`
	Length uint32 `json:"length,omitempty"`
	Word   uint32 `json:"word,omitempty"`
}

// What an Event tells of.
const (
	whatCalls   = "calls"
	whatReturns = "returns"
	whatSent    = "sent"
	whatArrives = "arrives"
	whatPlaced  = "placed"
	whatWrong   = "wrong"
	whatNote    = "note"
)

// maxEvents bounds a time line. What comes later is not recorded; it says so.
const maxEvents = 20000

// A recorder collects events once it has been started. Many runs have none: nil records nothing.
type recorder struct {
	mu     sync.Mutex
	began  time.Time
	events []Event
	lost   int
}

// start begins the time line, at 0.
func (r *recorder) start() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
}

func (r *recorder) add(e Event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.began.IsZero():
	case len(r.events) >= maxEvents:
		r.lost++
	default:
		e.At = time.Since(r.began)
		r.events = append(r.events, e)
	}
}
