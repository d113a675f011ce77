package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// firstTimeout is the retry timer of an unmeasured path: above the delays of a busy software responder, far
	// below the two seconds that peers' timers are set to.
	firstTimeout = 30 * time.Millisecond
	// probeTimeout is when a measured path is probed, once, before the retry timer: it is above what an acknowledgement
	// may be put off (ackDelay, and the milliseconds to which timers are kept).
	probeTimeout = 4 * time.Millisecond
	// rttFactor times the round trip is the least: a peer that answers late has lost nothing.
	rttFactor = 4
	// maxTimeout bounds the doubling when the peers have agreed on no timeout (code 0).
	maxTimeout = 2 * time.Second

	startWindow = 32 // packets
	// minWindow is what loss leaves: 64 KiB at path MTU 4096, a third of what the smallest receive buffer holds.
	minWindow = 16
	// infiniteRNR is the RNR retry count that means no limit (IBTA 9.7.5.2.8).
	infiniteRNR = 7
)

var zeroTime time.Time

// rnrTimers are the waits of the timer codes in RNR NAKs (IBTA table 45), in units of 10 microseconds.
var rnrTimers = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
	8192, 12288, 16384, 24576, 32768, 49152,
}

func rnrWait(s wire.Syndrome) time.Duration { return rnrTimers[s&31] * 10 * time.Microsecond }

// timeout is how long to wait for progress before the next retry.
func (q *QP) timeout() time.Duration {
	base := max(firstTimeout, rttFactor*q.req.rtt)
	if q.probes() {
		return min(base, max(probeTimeout, rttFactor*q.req.rtt))
	}
	limit := q.cfg.AckTimeout
	if limit <= 0 {
		limit = maxTimeout
	}
	return min(base<<min(q.req.retries, 16), max(limit, base))
}

// probes reports whether the path is to be probed when it is silent. The last packets of a burst, or the answer to them,
// may be lost with nothing behind that would tell; most times nothing is, and the peer did not run. So the oldest packet
// is sent again, alone, and not counted as a retry: the answer tells what is missing. A Read would be answered in full.
func (q *QP) probes() bool {
	r := &q.req
	return r.rtt > 0 && !r.probed && r.retries == 0 && q.oldestRead() == nil
}

// arm starts the retry timer if something is unanswered and it does not run, and stops it if nothing is.
func (q *QP) arm(now time.Time) {
	switch {
	case q.req.nxt == q.req.una:
		q.ackAt = zeroTime
	case q.ackAt.IsZero():
		q.ackAt = now.Add(q.timeout())
	}
}

// expire acts on deadlines that have passed.
func (q *QP) expire(now time.Time, s Sink) {
	q.expireAck(now)
	if !q.rnrAt.IsZero() && !now.Before(q.rnrAt) {
		q.rnrAt = zeroTime
	}
	if q.ackAt.IsZero() || now.Before(q.ackAt) {
		return
	}
	q.ackAt = zeroTime
	q.c.Timeouts++
	if q.probes() {
		q.req.probed, q.req.probing = true, true
		q.req.nakked = 0
		q.goBack()
		return
	}
	q.req.probing = false
	if q.req.retries >= q.cfg.RetryCount {
		q.failAt(q.sq.done, rdma.RetryExcErr, s)
		return
	}
	q.req.retries++
	// Nothing of the last attempt is under way any more: what comes now tells of this one.
	q.req.readRetry, q.req.nakked = false, 0
	q.loss()
	q.goBack()
}

// Deadline is when Transmit must be called next, zero for never.
func (q *QP) Deadline() (d time.Time) {
	if q.failed {
		return zeroTime
	}
	for _, t := range [...]time.Time{q.ackAt, q.rnrAt, q.resp.acks.due} {
		if !t.IsZero() && (d.IsZero() || t.Before(d)) {
			d = t
		}
	}
	return d
}

// loss takes a quarter of the window, once for all losses among the packets in flight. With half, as TCP did of old, 1 %
// of loss would keep it at 12 packets; go-back-N wastes more with a large one.
func (q *QP) loss() {
	r := &q.req
	if r.una >= r.recover {
		r.window = max(1, min(minWindow, q.cfg.Window), r.window-r.window/4)
		r.recover = r.fresh
	}
}

// grow opens the window by one packet for each window acknowledged.
func (q *QP) grow(acked uint64) {
	r := &q.req
	if r.window >= q.cfg.Window {
		return
	}
	if r.credit += int(acked); r.credit >= r.window {
		r.credit = 0
		r.window++
	}
}

// measure takes the round trip of the packet that was being timed, if it is acknowledged. A packet sent twice is
// not timed: nobody knows which of the two was answered.
func (q *QP) measure(now time.Time) {
	r := &q.req
	if r.timedAt.IsZero() || r.una <= r.timed {
		return
	}
	d := now.Sub(r.timedAt)
	r.timedAt = zeroTime
	if r.rtt == 0 {
		r.rtt = d
	} else {
		r.rtt += (d - r.rtt) / 8
	}
}
