package tcp

import (
	"fmt"
	"math/bits"

	"github.com/goiser/goiser/iscsi"
)

// A taskTable finds transfers by ITT: a hash table with linear probing that is at most half full, in order to
// take and drop tasks without an allocation. Its size is a power of two; it holds what the engine has
// outstanding.
type taskTable struct {
	slots []*iscsi.Transfer
	count int
}

// home is where an ITT would like to be: Fibonacci hashing, for ITTs that differ only in their high bits.
func (h *taskTable) home(itt uint32) int {
	shift := 32 - bits.Len(uint(len(h.slots)-1))
	return int(itt * 0x9e3779b1 >> shift)
}

func (h *taskTable) next(i int) int { return (i + 1) & (len(h.slots) - 1) }

// find is the transfer with an ITT, or nil.
func (h *taskTable) find(itt uint32) *iscsi.Transfer {
	if h.count == 0 {
		return nil
	}
	for i := h.home(itt); h.slots[i] != nil; i = h.next(i) {
		if h.slots[i].ITT == itt {
			return h.slots[i]
		}
	}
	return nil
}

// add takes t in. Two tasks with one ITT are the engine's mistake.
func (h *taskTable) add(t *iscsi.Transfer) {
	if h.find(t.ITT) != nil {
		panic(fmt.Sprintf("iscsi over tcp: ITT %#x is in use", t.ITT))
	}
	if 2*(h.count+1) > len(h.slots) {
		old := h.slots
		h.slots = make([]*iscsi.Transfer, max(64, 2*len(old)))
		for _, o := range old {
			if o != nil {
				h.place(o)
			}
		}
	}
	h.place(t)
	h.count++
}

func (h *taskTable) place(t *iscsi.Transfer) {
	i := h.home(t.ITT)
	for h.slots[i] != nil {
		i = h.next(i)
	}
	h.slots[i] = t
}

// remove takes t out and closes the gap: whoever stands behind it and would like to be at the gap or before
// moves there.
func (h *taskTable) remove(t *iscsi.Transfer) {
	i := h.home(t.ITT)
	for h.slots[i] != t {
		i = h.next(i)
	}
	h.slots[i] = nil
	h.count--
	mask := len(h.slots) - 1
	for j := h.next(i); h.slots[j] != nil; j = h.next(j) {
		home := h.home(h.slots[j].ITT)
		if (j-home)&mask >= (j-i)&mask {
			h.slots[i], h.slots[j] = h.slots[j], nil
			i = j
		}
	}
}

// each calls f for all transfers; f may remove the one it is given.
func (h *taskTable) each(f func(*iscsi.Transfer)) {
	for _, t := range append([]*iscsi.Transfer(nil), h.slots...) {
		if t != nil {
			f(t)
		}
	}
}
