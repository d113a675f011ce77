package scsi

// Prepare decodes and checks a task: LUN, opcode, fields, range, unit attentions. See Task.
func (d *Device) Prepare(t *Task) {
	d.Release(t) // whoever prepares a task again has done with what it held
	t.reset()
	if err := d.prepare(t); err != nil {
		t.OutLen, t.InLen, t.Mapped, t.In, t.answer = 0, 0, false, nil, nil
		t.Done = true
		d.finish(t, 0, err)
	} else if t.Done {
		d.finish(t, 0, nil)
	}
}

// prepare goes through the checks in the order of precedence of SAM-5, 5.3.3.
func (d *Device) prepare(t *Task) error {
	op, opErr := lookup(t.CDB)
	t.lu = d.acquire(t.Nexus, t.LUN)
	switch {
	case t.lu != nil:
		if err := d.admit(op, t); err != nil {
			return err
		}
	case op == nil || op.flags&anyLUN == 0:
		return errNoUnit
	}
	if opErr != nil {
		return opErr
	}
	t.op = op
	if op.offered != nil {
		if err := t.lu.missing(op); err != nil {
			return err
		}
	}
	if op.flags&needsMedium != 0 && t.lu.stopped.Load() {
		return errStopped
	}
	if err := op.checkCDB(t.CDB); err != nil {
		return err
	}
	if t.lu != nil && t.Nexus.mask.forbids(op, t.CDB) {
		return errWriteProtected
	}
	if t.Read && t.Write && t.edtl > 0 {
		return errBidirectional
	}
	t.MayBlock = op.flags&usesStore != 0 && t.lu.mayBlock || op.flags&runsAlone != 0
	return op.prepare(d, t)
}

// admit lets a command through to its unit, or says why not: op is nil for an unknown one. The unit
// attention of a reset comes before a reservation conflict, and that before any other (SAM-5, 5.3.3).
func (d *Device) admit(op *operation, t *Task) error {
	clean := op != nil && op.flags&ignoresAttention != 0 || t.Nexus.isClean(t.lu)
	if !clean {
		if err := d.attend(t.Nexus, t.lu, resetAttentions); err != nil {
			return err
		}
	}
	if op != nil && t.lu.conflict(t.Nexus, op.access, t.CDB) {
		return errConflict
	}
	if !clean {
		if err := d.attend(t.Nexus, t.lu, allAttentions); err != nil {
			return err
		}
	}
	return nil
}

// Execute runs a prepared task, to its end, unless it sets t.NeedsRoom. It may block if t.MayBlock.
func (d *Device) Execute(t *Task) {
	if t.Done || t.op == nil {
		panic("scsi: Execute of a task that is not prepared")
	}
	t.mustHold()
	var err error
	if t.op.flags&touchesBlocks != 0 {
		if err = t.enter(); t.NeedsRoom {
			return
		}
	}
	if err == nil {
		err = t.op.execute(t)
	}
	d.finish(t, max(t.OutLen, t.InLen), err)
}

// finish makes the answer of a task of which moved bytes have been moved, and lets go of its unit.
// After an error Data-In is not sent, so only Data-Out has moved.
func (d *Device) finish(t *Task, moved uint32, err error) {
	if err != nil && t.OutLen == 0 {
		moved = 0
	}
	t.settle(moved, err)
	t.answer = nil
	if lu := t.lu; lu != nil && err != nil {
		lu.errors.Add(1)
	}
	t.op = nil
	if !t.Mapped {
		d.Release(t)
	}
}

// Abandon ends a prepared task that will not be executed. Calling it for a task that has ended does
// what Release does.
func (d *Device) Abandon(t *Task) {
	t.op = nil
	d.Release(t)
}

// Release lets go of the store's memory that a Mapped task points at: the transport reads In no more.
// It may be called for any task that has been executed or was Done; only the first call counts.
func (d *Device) Release(t *Task) {
	lu := t.lu
	if lu == nil {
		return
	}
	t.lu = nil
	if t.begun {
		t.begun = false
		lu.release(&lu.done)
		return
	}
	if t.pass.listed {
		lu.leave(&t.pass)
	}
	lu.release(&lu.dropped)
}

func prepareNothing(_ *Device, t *Task) error {
	t.Done = true
	return nil
}

// executeReply copies parameter data to where the transport wants it.
func executeReply(t *Task) error {
	rest := t.answer
	for _, b := range t.In {
		rest = rest[copy(b, rest):]
	}
	return nil
}
