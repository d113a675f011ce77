// Package trace carries the steps of iSER's data path between processes, a JSON object a line: iserd --trace writes
// them, iser demo shows them beside its own.
package trace

import (
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/goiser/goiser/iser"
)

// An Event is one step at one end. At is the wall clock in nanoseconds since 1970: on one machine the two ends' are
// comparable.
type Event struct {
	At     int64          `json:"at_ns"`
	Side   string         `json:"side"` // "initiator" or "target"
	Step   iser.TraceStep `json:"step"`
	Tag    uint32         `json:"tag"`
	Key    uint32         `json:"key"`
	Addr   uint64         `json:"addr"`
	Length uint32         `json:"length"` // bytes
	Word   uint32         `json:"word"`   // the data's first four bytes, big-endian
}

// New is a step that happens now.
func New(side string, e iser.TraceEvent) Event {
	return Event{time.Now().UnixNano(), side, e.Step, e.ITT, e.Key, e.Addr, e.Length, e.Word}
}

// Writer is a trace hook for target or initiator that writes to w, from any goroutine. A write error ends the
// tracing and nothing else.
func Writer(w io.Writer, side string) func(iser.TraceEvent) {
	var mu sync.Mutex
	enc := json.NewEncoder(w)
	return func(e iser.TraceEvent) {
		mu.Lock()
		defer mu.Unlock()
		if enc != nil && enc.Encode(New(side, e)) != nil {
			enc = nil
		}
	}
}

// Read calls f for every event until the end of r.
func Read(r io.Reader, f func(Event)) error {
	for d := json.NewDecoder(r); ; {
		var e Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		f(e)
	}
}
