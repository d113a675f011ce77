package scsi

import (
	"encoding/binary"
	"math"
)

// GET LBA STATUS parameter data (SBC-3, GET LBA STATUS): a header, then a descriptor an extent.
//
//	header: 0..3 length of what follows      descriptor: 0..7 LBA  8..11 blocks  12 PROVISIONING STATUS
const (
	statusHeaderLen     = 8
	statusDescriptorLen = 16

	statusMapped      = 0x0
	statusDeallocated = 0x1

	// maxStatusDescriptors bounds one answer. An initiator goes on where it ends (SBC-3: the device
	// server need not return all that there is).
	maxStatusDescriptors = 256
)

// prepareLBAStatus makes room for as many descriptors as the allocation length has, one at least: how many
// there are is known once the store has been asked.
func prepareLBAStatus(_ *Device, t *Task) error {
	t.lba = binary.BigEndian.Uint64(t.CDB[2:])
	capacity := t.lu.capacity.Load()
	if t.lba >= capacity {
		return errOutOfRange
	}
	allocation := binary.BigEndian.Uint32(t.CDB[10:])
	most := uint64(statusHeaderLen + maxStatusDescriptors*statusDescriptorLen)
	t.wantIn(min(uint64(allocation), most))
	t.expected = uint64(t.InLen)
	t.MayBlock = true
	t.Done = t.InLen == 0
	return nil
}

// executeLBAStatus asks the store, or calls everything mapped if that cannot tell. A block is mapped if the
// store keeps any part of it.
func executeLBAStatus(t *Task) error {
	lu := t.lu
	b := make([]byte, statusHeaderLen, statusHeaderLen+maxStatusDescriptors*statusDescriptorLen)
	lba, capacity := t.lba, lu.capacity.Load()
	for first := true; lba < capacity && (first || len(b)+statusDescriptorLen <= int(t.InLen)); first = false {
		status, blocks, err := lu.run(lba, capacity-lba)
		if err != nil {
			return readError(err, lba)
		}
		b = binary.BigEndian.AppendUint64(b, lba)
		b = binary.BigEndian.AppendUint32(b, uint32(blocks))
		b = append(b, status, 0, 0, 0)
		lba += blocks
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.answer = b[:min(len(b), int(t.InLen))]
	t.InLen = uint32(len(t.answer))
	t.expected = uint64(t.InLen)
	return executeReply(t)
}

// run is the provisioning status at lba and how many blocks have it, of at most so many and as the
// descriptor's field can say.
func (lu *LogicalUnit) run(lba, most uint64) (status byte, blocks uint64, err error) {
	most = min(most, math.MaxUint32)
	if lu.extenter == nil || !lu.provisioned() {
		return statusMapped, most, nil
	}
	for blocks < most {
		allocated, n, err := lu.extent(lba+blocks, most-blocks)
		switch now := statusOf(allocated); {
		case err != nil:
			return 0, 0, err
		case blocks == 0:
			status = now
		case now != status:
			return status, blocks, nil
		}
		blocks += n
	}
	return status, blocks, nil
}

func statusOf(allocated bool) byte {
	if allocated {
		return statusMapped
	}
	return statusDeallocated
}

// extent asks the store of whole blocks. One that a run of the store ends in is allocated, whatever it is:
// some part of it is.
func (lu *LogicalUnit) extent(lba, most uint64) (allocated bool, blocks uint64, err error) {
	allocated, n, err := lu.extenter.Extent(int64(lba*lu.blockSize), int64(most*lu.blockSize))
	if err != nil {
		return false, 0, err
	}
	blocks = uint64(n) / lu.blockSize
	switch {
	case blocks == 0:
		return true, 1, nil
	case allocated && uint64(n)%lu.blockSize != 0:
		blocks++
	}
	return allocated, min(blocks, most), nil
}
