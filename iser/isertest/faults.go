package isertest

import (
	"bytes"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
)

// Faults are what a watched provider does wrong, below the checks.
type Faults struct {
	EarlyRead  bool // an RDMA Read completes before its data is in memory
	EarlySend  bool // a message is delivered before the data of the RDMA Writes before it is in memory
	StaleOffer bool // an RDMA Write for a command that has been answered is still let in, where its memory is in use again
	EndedOffer bool // the same, where its memory is not in use
	Swapped    bool // two completions change places
	Twice      bool // a completion is given twice
	Reused     bool // what a Send reads is overwritten once it is posted
	Recycled   bool // what a command's Send reads is overwritten once the response is there, though it has not completed

	armed bool // a disk is there: so it is about its data, and not the login that fails
	late  []placement
}

// A placement is data that is put in memory when it is too late.
type placement struct{ mem, data []byte }

// posting is called before a work request is posted.
func (f *Faults) posting(w *Watch, p *post) {
	if f.EarlyRead && p.op == rdma.OpRead {
		for _, e := range p.sgl {
			p.before = append(p.before, w.bytes(e)...)
		}
	}
}

// posted is called after work requests were posted.
func (f *Faults) posted(w *Watch, wrs []rdma.SendWR) {
	for i := range wrs {
		if f.Reused && isSend(wrs[i].Op) {
			b := w.first(wrs[i].SGL)
			b[len(b)-1] ^= 1
		}
	}
}

// place puts what is late in its place.
func (f *Faults) place() {
	for _, l := range f.late {
		copy(l.mem, l.data)
	}
	f.late = f.late[:0]
}

// polled is called with completions before they are checked.
func (f *Faults) polled(w *Watch, cs []rdma.Completion) {
	f.place()
	for i := range cs {
		if f.EarlyRead && !cs[i].Recv && cs[i].Status == rdma.Success {
			f.unread(w, &cs[i])
		}
		if i == 0 || cs[i].QPNum != cs[i-1].QPNum || cs[i].Recv != cs[i-1].Recv {
			continue
		}
		switch {
		case f.Swapped:
			cs[i], cs[i-1] = cs[i-1], cs[i]
		case f.Twice:
			cs[i] = cs[i-1]
		}
	}
}

// unread takes the data of an RDMA Read away until the next poll.
func (f *Faults) unread(w *Watch, c *rdma.Completion) {
	q := w.qps[c.QPNum]
	i := slices.IndexFunc(q.sends.posted, func(p post) bool { return p.id == c.ID && p.op == rdma.OpRead })
	if i < 0 {
		return
	}
	before := q.sends.posted[i].before
	for _, e := range q.sends.posted[i].sgl {
		b := w.bytes(e)
		f.delay(b, before)
		before = before[len(b):]
	}
}

// delay puts back what mem held before, until the next poll.
func (f *Faults) delay(mem, before []byte) {
	f.late = append(f.late, placement{mem, bytes.Clone(mem)})
	copy(mem, before)
}

// offered is called when memory is offered to the peer, again if old is not nil.
func (f *Faults) offered(o, old *offer) {
	if f.armed && f.EarlySend && o.write && o.before == nil {
		o.before = bytes.Clone(o.mem())
	}
	if f.armed && f.StaleOffer && o.write && old != nil {
		o.stale, old.before = old, bytes.Clone(old.mem())
	}
}

// recycle is called when the response to a command is delivered.
func (f *Faults) recycle(q *watchedQP, itt uint32) {
	if !f.Recycled {
		return
	}
	for _, p := range q.sends.posted {
		if isSend(p.op) && p.seen.Tag == itt {
			b := q.w.first(p.sgl)
			b[len(b)-1] ^= 1
		}
	}
}

// answered is called when the response of the command that has offered memory is delivered.
func (f *Faults) answered(o *offer) {
	if f.EarlySend && o.before != nil {
		f.delay(o.mem(), o.before)
	}
	if f.armed && f.EndedOffer && o.write {
		late := bytes.Clone(o.mem())
		late[0] ^= 1
		f.late = append(f.late, placement{o.mem(), late})
	}
	if s := o.stale; s != nil {
		copy(s.mem(), s.before)
		o.stale = nil
	}
}
