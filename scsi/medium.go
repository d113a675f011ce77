package scsi

// prepareSynchronizeCache checks the range: 0 blocks mean up to the end (SBC-3, NUMBER OF LOGICAL BLOCKS). The whole cache
// is flushed, and IMMED changes nothing: an answer that comes after the flush is right in both cases.
func prepareSynchronizeCache(_ *Device, t *Task) error {
	e := parseExtent(t.CDB)
	if !t.lu.inRange(e.lba, e.blocks) {
		return errOutOfRange
	}
	t.lba, t.blocks = e.lba, e.blocks
	return nil
}

func executeSynchronizeCache(t *Task) error {
	if err := t.lu.store.Flush(); err != nil {
		return writeError(err, t.lba)
	}
	return nil
}

// preparePrefetch answers CONDITION MET where all of the range, 0 blocks meaning up to the end, is in the
// cache: a store that never blocks is one. Of another we do not know what it caches, or for how long: GOOD,
// which says that not all is there (SBC-3, 5.8). There is no limit: nothing is read.
func preparePrefetch(_ *Device, t *Task) error {
	e := parseExtent(t.CDB)
	if !t.lu.inRange(e.lba, e.blocks) {
		return errOutOfRange
	}
	if !t.lu.mayBlock {
		t.Status = ConditionMet
	}
	t.Done = true
	return nil
}

// Byte 4 of START STOP UNIT (SBC-3).
const (
	startStart          = 0x01
	startLoadEject      = 0x02
	startNoFlush        = 0x04
	startPowerCondition = 0xf0
)

// prepareStartStop starts or stops the unit for everybody. There are no power conditions and nothing
// to eject.
func prepareStartStop(_ *Device, t *Task) error {
	how := t.CDB[4]
	switch {
	case how&startPowerCondition != 0:
		return invalidField(4, 7)
	case how&startLoadEject != 0:
		return invalidField(4, 1)
	case how&startStart != 0:
		t.lu.stopped.Store(false)
		t.Done = true
	}
	return nil
}

// executeStop stops the unit once its cache is on the medium.
func executeStop(t *Task) error {
	if t.CDB[4]&startNoFlush == 0 {
		if err := t.lu.store.Flush(); err != nil {
			return writeError(err, 0)
		}
	}
	t.lu.stopped.Store(true)
	return nil
}
