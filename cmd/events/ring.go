package events

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/sirupsen/logrus"
)

// maxText bounds each text of an event, in bytes: the ring's memory is bounded even where peers choose the words.
const maxText = 512

// A Ring keeps the last events. When it is full the oldest one goes. Its methods may be called from any goroutine.
type Ring struct {
	mu   sync.Mutex
	ring []admin.Event
	last uint64        // Seq of the newest; it lies at (last-1)%len(ring)
	more chan struct{} // closed with the next event
}

var _ logrus.Hook = (*Ring)(nil)

// New makes a ring that keeps n events, at least one.
func New(n int) *Ring {
	return &Ring{ring: make([]admin.Event, max(n, 1)), more: make(chan struct{})}
}

// Levels implements logrus.Hook.
func (r *Ring) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel, logrus.InfoLevel}
}

// Fire implements logrus.Hook. It never fails.
func (r *Ring) Fire(line *logrus.Entry) error {
	e := admin.Event{
		Time:      line.Time,
		Level:     line.Level.String(),
		Kind:      text(line.Data["event"]),
		Message:   text(line.Message),
		Session:   text(line.Data["session"]),
		Initiator: text(line.Data["initiator"]),
		Target:    text(line.Data["target"]),
		LUN:       text(line.Data["lun"]),
		Error:     text(line.Data["err"]),
	}
	if e.Kind == "" {
		e.Kind = "log"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	e.Seq = r.last
	r.ring[(r.last-1)%uint64(len(r.ring))] = e
	close(r.more)
	r.more = make(chan struct{})
	return nil
}

// text is a field's value in words, cut to maxText; nothing for one that is not there.
func text(v any) string {
	if v == nil {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		s = fmt.Sprint(v)
	}
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return strings.Clone(s) // what it was cut from may be large
}

// Since is what has happened after event seq; 0: all that is kept. A number from the future, of a daemon that ran before,
// is taken as 0.
func (r *Ring) Since(seq uint64) admin.Events {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq > r.last {
		seq = 0
	}
	first := max(seq, r.last-min(r.last, uint64(len(r.ring)))) + 1
	list := admin.Events{Events: []admin.Event{}, Missed: first - 1 - seq, Next: r.last}
	for n := first; n <= r.last; n++ {
		list.Events = append(list.Events, r.ring[(n-1)%uint64(len(r.ring))])
	}
	return list
}

// Wait is Since that waits until there is something after event seq, or until ctx ends: then there is nothing, and no
// error.
func (r *Ring) Wait(ctx context.Context, seq uint64) admin.Events {
	for {
		r.mu.Lock()
		more, last := r.more, r.last
		r.mu.Unlock()
		if last == seq {
			select {
			case <-more:
				continue
			case <-ctx.Done():
			}
		}
		return r.Since(seq)
	}
}
