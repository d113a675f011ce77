package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// An acknowledgement by itself costs both ends a datagram and the peer a wake-up that tells it little. Who gets a
// message mostly answers it at once, as iSER does a command with data and response, and a response with the next
// command: then the acknowledgement leaves with the answer. So that of a Send waits for one, but not
//
//   - if the last messages had no answer within ackDelay: then it is what the peer waits for;
//   - longer than ackDelay, nor over more than ackBatch packets;
//   - if the peer's retry timer is short (minPatience);
//   - if a packet came twice, or in the middle of a message: then the peer is out of step, or its window is full.
//
// IBTA 9.7.5.1.2 lets a responder put off and coalesce acknowledgements.
const (
	// ackDelay is far above the time that a program takes to answer, and far below any peer's retry timer.
	ackDelay = 500 * time.Microsecond
	// ackBatch is a quarter of what peers have in flight at most (rxe: 128), and holds a message of 64 KiB at path
	// MTU 4096.
	ackBatch = 32
	// minPatience is the shortest retry timer of a peer that is let wait.
	minPatience = 16 * time.Millisecond
)

// acks are what a responder owes of acknowledgements.
type acks struct {
	now     bool      // at the end of the round
	written bool      // the same, but that a Send behind it may put it off
	due     time.Time // at the latest, with what leaves before; zero: nothing is owed so
	packets int       // placed since the last one
	patient bool      // the last messages were answered
	message time.Time // when the last came
}

// settle: everything placed has been acknowledged.
func (a *acks) settle() {
	a.now, a.written, a.due, a.packets = false, false, zeroTime, 0
}

// owe notes that a packet has been placed.
func (q *QP) owe(now time.Time, p wire.Packet) {
	a, op := &q.resp.acks, p.Opcode()
	a.packets++
	message := op.Is(wire.Send) && op.Is(wire.Last)
	if message {
		a.message = now
	}
	switch {
	case !p.AckReq():
	case !a.patient || a.packets > ackBatch:
		a.now = true
	case message:
		a.written = false
		if a.due.IsZero() {
			a.due = now.Add(ackDelay)
		}
	default:
		a.written = true
	}
}

// answered notes that requests leave: whether they answer a message decides if the next acknowledgements wait.
func (q *QP) answered(now time.Time) {
	a := &q.resp.acks
	if !a.patient && !a.message.IsZero() && now.Sub(a.message) < ackDelay {
		a.patient = q.cfg.AckTimeout <= 0 || q.cfg.AckTimeout >= minPatience
	}
}

// expireAck ends the wait for an answer.
func (q *QP) expireAck(now time.Time) {
	if a := &q.resp.acks; !a.due.IsZero() && !now.Before(a.due) {
		a.now, a.patient = true, false
	}
}

// Acknowledge sends an acknowledgement that waits for an answer: there will be none. It is as if the message had come
// to a queue pair that waits for nothing.
func (q *QP) Acknowledge(s Sink) {
	if !q.failed && !q.resp.acks.due.IsZero() {
		q.answer(wire.Ack, q.resp.exp-1, s)
	}
}
