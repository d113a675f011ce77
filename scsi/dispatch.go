package scsi

// Prepare puts a task into the task set of its unit and, unless it is Held there, decodes and checks it: LUN,
// opcode, fields, range, unit attentions. See Task.
func (d *Device) Prepare(t *Task) {
	if t.lu != nil {
		d.Release(t) // whoever prepares a task again has done with what it held
	}
	t.reset()
	if lu := d.find(t.Nexus, t.LUN); lu != nil {
		started, ok := lu.set.enter(t)
		if ok {
			t.lu = lu
			if !started {
				t.Held = true
				return
			}
		}
	}
	d.decide(t)
}

// Resume goes on with a task that was Held and whose Ready has been called: what it finds is what Prepare
// would find now. If its unit has been removed meanwhile, it finds none, even if another has taken the number.
func (d *Device) Resume(t *Task) {
	if !t.Held || t.place == placeDormant {
		panic("scsi: Resume of a task that may not go on")
	}
	t.Held = false
	if t.lu.set.isRemoved() {
		d.Release(t)
	}
	d.decide(t)
}

// Withdraw takes a Held task back, which is as if it had never come. False means that it is too late: Ready has
// been called or is about to be, and the task must be resumed or abandoned then.
func (d *Device) Withdraw(t *Task) bool {
	if !t.Held || !t.lu.set.withdraw(t) {
		return false
	}
	t.Held, t.lu = false, nil
	return true
}

// decide prepares a task whose turn it is.
func (d *Device) decide(t *Task) {
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
	switch {
	case t.lu != nil:
		if !t.isPlain() {
			if err := d.admit(op, t); err != nil {
				return err
			}
		}
	case op == nil || op.flags&anyLUN == 0:
		return errNoUnit
	}
	if t.Attr > HeadOfQueue {
		return errAttribute
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
	if t.lu != nil && t.lu.state.Load()&stateSanitizing != 0 && op.flags&duringSanitize == 0 {
		if err := t.lu.sanitizeError(); err != nil {
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

// isPlain reports whether its unit has nothing to say that any command must hear: no unit attention, no
// reservation, no port group with limits.
func (t *Task) isPlain() bool {
	lu := t.lu
	return t.Nexus.isClean(lu) && lu.reservations.Load() == nil && lu.limited.Load() == nil
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
	return t.lu.reachable(t.Nexus.relativePort, op)
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

// TryExecute is Execute of a task that MayBlock, on a connection's loop: it runs it if that needs no waiting after all. False:
// nothing has been done, and Execute is due.
func (d *Device) TryExecute(t *Task) bool {
	if !t.mayTry {
		return false
	}
	t.mustHold()
	// Whoever is held up at the gate is so by a command that may wait for the store: only the fast way will do.
	lu := t.lu
	if lu.state.Load()&stateSlow != 0 {
		return false
	}
	if !lu.begin(stateSlow) {
		lu.retreat()
		return false
	}
	if !t.tryRead() {
		lu.retreat()
		return false
	}
	t.begun = true
	d.finish(t, t.InLen, nil)
	return true
}

// finish makes the answer of a task of which moved bytes have been moved. After an error Data-In is not
// sent, so only Data-Out has moved. The task has not ended before Release.
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
		t.leaveGate() // not later: who waits at the gate may keep a connection's loop waiting
	}
}

// Abandon ends a task that will not be executed, or resumed after Ready. Calling it for a task that has ended does
// what Release does.
func (d *Device) Abandon(t *Task) {
	t.op, t.Held = nil, false
	d.Release(t)
}

// Release ends a task: its answer has been queued and, if it is Mapped, the transport reads In no more. Tasks that
// wait for it may start. Only the first call counts.
func (d *Device) Release(t *Task) {
	lu := t.lu
	if lu == nil {
		return
	}
	if t.begun || t.pass.listed {
		t.leaveGate()
	}
	if !t.counted {
		lu.passed.Add(1)
	}
	t.lu, t.counted = nil, false
	lu.set.leave(t)
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
