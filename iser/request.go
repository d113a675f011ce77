package iser

// A request is the life of one command's memory at the initiator. Two independent events end it: its
// Sends complete (until then our own device may read their memory again, to retransmit) and the
// response comes, or never will. They come in either order, and each thing is given back exactly once.
//
//	            ┌─ sent ×n ─────────────┐
//	start ──────┤                       ├──► release
//	            └─ answered │ forgotten ┘
//	                  │           └──► lose the pool memory: the peer may still use it
//	                  └──► put the pool memory back
type request struct {
	queued bool // more of it is still to be sent
	sends  int  // Sends staged or posted, not completed
	pooled bool // has pool memory

	answered, forgotten bool
	detached            bool // the caller's buffers are out of reach
	released            bool
}

// What a step of a request asks for.
type action uint8

const (
	actPut     action = 1 << iota // give the pool memory back
	actLose                       // keep it until the connection's end
	actCopy                       // copy read data to the caller first
	actRelease                    // tell the engine; the request is over
)

// sending: one more Send is staged.
func (r *request) sending() { r.sends++ }

// allSent: nothing more will be sent.
func (r *request) allSent() action {
	r.queued = false
	return r.end()
}

// sent: one Send has completed.
func (r *request) sent() action {
	if r.sends == 0 {
		panic("iser: a Send of a request completed twice")
	}
	r.sends--
	return r.end()
}

// answer: the response has come.
func (r *request) answer() action {
	if r.answered || r.forgotten {
		panic("iser: a request ended twice")
	}
	r.answered = true
	var act action
	if !r.detached {
		act = actCopy
	}
	if r.pooled {
		r.pooled = false
		act |= actPut
	}
	return act | r.end()
}

// forget: there will be no response.
func (r *request) forget() action {
	if r.answered || r.forgotten {
		return 0
	}
	r.forgotten = true
	var act action
	if r.pooled {
		r.pooled = false
		act = actLose
	}
	return act | r.end()
}

// die: the connection is over. The engine's transfer and the caller's buffers are no part of what the
// device may still use, so it is not waited for.
func (r *request) die() action {
	if r.released {
		return 0
	}
	r.released = true
	return actRelease
}

// end finds out whether the request is over.
func (r *request) end() action {
	if r.released || r.queued || r.sends > 0 || !r.answered && !r.forgotten {
		return 0
	}
	r.released = true
	return actRelease
}
