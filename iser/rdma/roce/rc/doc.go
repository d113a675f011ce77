// Package rc is a reliable connection's queue pair (IBTA 9.7) as a state machine: requester, responder, completer,
// and the memory that packets may reach. It has no goroutine, socket or clock, and no lock but in Memory: packets,
// posts and the time go in; packets, completions and the next deadline come out. It makes no connections (package
// cm), does not check or seal packets (the link), has no atomic operations, and gives immediate data to nobody.
//
// Whoever owns a queue pair does this in rounds:
//
//	for _, p := range received {
//		q.Receive(now, p, sink)
//	}
//	q.PostSend(posted, sink)
//	q.Transmit(now, sink) // again, with new room in the sink, while q.More()
//	timer.Reset(q.Deadline().Sub(now))
//
// Sequence numbers are 64 bits inside, so that they compare as numbers do; the PSN of a packet is their low 24 bits.
// A work request's data is copied from registered memory when a packet of it is built, each time: when it is sent
// again the memory is read again.
package rc
