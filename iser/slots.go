package iser

import (
	"fmt"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
)

// A slot is the memory of one Send: header, BHS, AHS and data, one piece. It is filled when the PDU is
// queued and is not used for another before the Send's own completion: until then the device may have
// to transmit it again, whatever the peer has answered meanwhile.
type slot struct {
	mem   []byte
	sge   rdma.SGE // Length is what the message is long
	data  rdma.SGE // what follows from the caller's own memory; Length 0: nothing
	class int

	itt  uint32
	inv  uint32 // STag to invalidate at the peer, if op says so
	op   rdma.OpCode
	task *task    // target: whose response it is
	cmd  *command // initiator: whose Send it is
}

// slots are a connection's slots in classes by size. There are enough for every PDU that may have to be
// answered; see conn.repost for what keeps it so.
type slots struct {
	all     []slot
	classes []slotClass // smallest first
	blocks  []*block
}

type slotClass struct {
	size int // bytes
	free []int32
}

// grow adds count slots of size bytes. Slots in use stay where they are.
func (s *slots) grow(dev rdma.Device, count, size int) error {
	size = roundUp(size)
	b, err := newBlock(dev, count*size, 0)
	if err != nil {
		return err
	}
	s.blocks = append(s.blocks, b)
	class := s.class(size)
	for i := range count {
		s.all = append(s.all, slot{mem: b.mem[i*size:][:size:size], sge: b.sge(i*size, 0), class: class})
		s.classes[class].free = append(s.classes[class].free, int32(len(s.all)-1))
	}
	return nil
}

// class finds or makes the class of a size.
func (s *slots) class(size int) int {
	i, found := slices.BinarySearchFunc(s.classes, size, func(c slotClass, size int) int { return c.size - size })
	if found {
		return i
	}
	s.classes = slices.Insert(s.classes, i, slotClass{size: size})
	for j := range s.all {
		if s.all[j].class >= i {
			s.all[j].class++
		}
	}
	return i
}

// get takes the smallest free slot for a message of n bytes.
func (s *slots) get(n int) (int32, bool) {
	for i := range s.classes {
		c := &s.classes[i]
		if last := len(c.free) - 1; c.size >= n && last >= 0 {
			index := c.free[last]
			c.free = c.free[:last]
			s.all[index].sge.Length = uint32(n)
			return index, true
		}
	}
	return 0, false
}

// put gives a slot back.
func (s *slots) put(index int32) {
	sl := &s.all[index]
	if sl.op == 0 {
		panic(fmt.Sprintf("iser: send slot %d given back twice", index))
	}
	sl.op, sl.inv, sl.itt, sl.task, sl.cmd, sl.data = 0, 0, 0, nil, nil, rdma.SGE{}
	c := &s.classes[sl.class]
	c.free = append(c.free, index)
}

// spare is how many more small PDUs could be queued now.
func (s *slots) spare() int {
	n := 0
	for i := range s.classes {
		n += len(s.classes[i].free)
	}
	return n
}

// roundUp aligns buffer sizes to a cache line.
func roundUp(n int) int { return (n + 63) &^ 63 }
