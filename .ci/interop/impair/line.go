package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// rates are percentages of frames.
type rates struct{ loss, reorder, duplicate float64 }

// Bounds of what is held back: how many frames, and how many may overtake one.
const (
	maxHeld = 64
	maxPast = 16
)

// A line is one way of the wire.
type line struct {
	rates
	rng  *rand.Rand
	send func([]byte) error
	held []heldFrame // in the order in which they came

	passed, lost, duplicated, overtaken uint64
}

// A heldFrame waits until some others have gone past it.
type heldFrame struct {
	frame []byte
	left  int
}

func newLine(r rates, rng *rand.Rand, send func([]byte) error) *line {
	return &line{rates: r, rng: rng, send: send}
}

// take decides about a frame, which it does not keep. Each decision draws as often, whatever it is.
func (l *line) take(frame []byte) error {
	lose, hold, twice := l.chance(l.loss), l.chance(l.reorder), l.chance(l.duplicate)
	past := 1 + l.rng.IntN(maxPast)
	switch {
	case lose:
		l.lost++
		return nil
	case hold && len(l.held) < maxHeld:
		l.held = append(l.held, heldFrame{bytes.Clone(frame), past})
		return nil
	}
	if err := l.pass(frame); err != nil {
		return err
	}
	if twice {
		l.duplicated++
		if err := l.send(frame); err != nil {
			return err
		}
	}
	return l.overtake()
}

// overtake lets go what enough frames have gone past.
func (l *line) overtake() error {
	kept := l.held[:0]
	for i := range l.held {
		h := &l.held[i]
		if h.left--; h.left > 0 {
			kept = append(kept, *h)
			continue
		}
		l.overtaken++
		if err := l.pass(h.frame); err != nil {
			return err
		}
	}
	l.held = kept
	return nil
}

// idle lets go all that is held: nothing comes to overtake it.
func (l *line) idle() error {
	for _, h := range l.held {
		if err := l.pass(h.frame); err != nil {
			return err
		}
	}
	l.held = l.held[:0]
	return nil
}

func (l *line) pass(frame []byte) error {
	l.passed++
	return l.send(frame)
}

func (l *line) chance(percent float64) bool { return l.rng.Float64()*100 < percent }

func (l *line) String() string {
	return fmt.Sprintf("%d frames passed, %d lost, %d sent twice, %d overtaken", l.passed, l.lost, l.duplicated, l.overtaken)
}
