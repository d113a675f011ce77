package scsi

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// maxCopyResults bounds what is kept of copies for a nexus; the oldest go first.
const maxCopyResults = 64

// copyResults keeps what RECEIVE COPY RESULTS can ask for, for one nexus: it goes with it.
type copyResults struct {
	mu   sync.Mutex
	list []*copyProgress // in the order of beginning
}

// A copyProgress is what is known of one EXTENDED COPY command.
type copyProgress struct {
	lu *LogicalUnit // that it was sent to
	id byte         // list identifier

	segments atomic.Uint64 // done
	bytes    atomic.Uint64

	mu    sync.Mutex // guards what follows
	ended bool
	told  bool // COPY STATUS has told of the end
	// failed is why it failed; nil if it has not, or FAILED SEGMENT DETAILS has told.
	failed *senseError
}

// begin lists a copy, unless another with its list identifier is going on. Results of an earlier one are
// discarded (SPC-4, 5.17.6).
func (r *copyResults) begin(lu *LogicalUnit, l *copyList) (*copyProgress, error) {
	p := &copyProgress{lu: lu, id: l.id}
	if l.usage == listIDNone {
		return p, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.indexLocked(lu, l.id); i >= 0 {
		if !r.list[i].isEnded() {
			return nil, errCopyInProgress
		}
		r.list = slices.Delete(r.list, i, i+1)
	}
	if len(r.list) >= maxCopyResults { // those that go on are no more than maxCopies
		i := slices.IndexFunc(r.list, (*copyProgress).isEnded)
		r.list = slices.Delete(r.list, i, i+1)
	}
	r.list = append(r.list, p)
	return p, nil
}

// forget drops the results of copies that were sent to a unit: it has been reset or removed (SPC-4, 5.17.6).
func (r *copyResults) forget(lu *LogicalUnit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(p *copyProgress) bool { return p.lu == lu })
}

func (r *copyResults) indexLocked(lu *LogicalUnit, id byte) int {
	return slices.IndexFunc(r.list, func(p *copyProgress) bool { return p.lu == lu && p.id == id })
}

func (p *copyProgress) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// end keeps what has become of it.
func (p *copyProgress) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	errors.As(err, &p.failed)
}

// find is the copy with a list identifier that was sent to a unit, nil if nothing is known of one.
func (r *copyResults) find(lu *LogicalUnit, id byte) *copyProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.indexLocked(lu, id); i >= 0 {
		return r.list[i]
	}
	return nil
}

// Service actions of EXTENDED COPY and of RECEIVE COPY RESULTS (SPC-4, 6.17 to 6.20).
const (
	copyActionLID1       = 0x00
	copyActionStatus     = 0x00
	copyActionParameters = 0x03
	copyActionDetails    = 0x04
)

// COPY MANAGER STATUS.
const (
	copyGoesOn = 0x00
	copyDone   = 0x01
	copyErrors = 0x02
)

// prepareCopyStatus answers COPY STATUS(LID1) (SPC-4, 6.17). The end of a copy is told once.
//
//	0..3 available data  4 HDD, status  5..6 segments processed  7 units of  8..11 transfer count
func prepareCopyStatus(_ *Device, t *Task) error {
	p := t.Nexus.copies.find(t.lu, t.CDB[2])
	if p == nil {
		return invalidField(2, 7)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told {
		return invalidField(2, 7)
	}
	b := make([]byte, 12)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	switch {
	case p.failed != nil:
		b[4] = copyErrors
	case p.ended:
		b[4] = copyDone
	}
	p.told = p.ended
	binary.BigEndian.PutUint16(b[5:], uint16(p.segments.Load()))
	const kib = 1 // TRANSFER COUNT UNITS: 2^10 bytes; 64 segments of 256 MiB need that
	b[7] = kib
	binary.BigEndian.PutUint32(b[8:], uint32(p.bytes.Load()>>10))
	t.reply(b, binary.BigEndian.Uint32(t.CDB[10:]))
	return nil
}

// prepareCopyDetails answers FAILED SEGMENT DETAILS(LID1) (SPC-4, 6.20), once for a copy that failed.
//
//	0..3 available data  56 status  58..59 sense data length  60.. sense data
func prepareCopyDetails(_ *Device, t *Task) error {
	p := t.Nexus.copies.find(t.lu, t.CDB[2])
	if p == nil {
		return invalidField(2, 7)
	}
	b := make([]byte, 4, 60+MaxSense) // no available data
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.failed; e != nil && e.key == keyCopyAborted {
		b = e.appendFixed(b[:60])
		b[56] = byte(CheckCondition)
		binary.BigEndian.PutUint16(b[58:], uint16(len(b)-60))
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		p.failed, p.told = nil, true
	}
	t.reply(b, binary.BigEndian.Uint32(t.CDB[10:]))
	return nil
}

// prepareCopyParameters answers OPERATING PARAMETERS (SPC-4, 6.19): the limits that parseCopyList and plan
// enforce. No data is held, and there is no inline data.
//
//	4 SNLID  8..9 CSCD descriptors  10..11 segments  12..15 descriptors' length  16..19 segment length
//	34..35, 36 concurrent copies  37 granularity, log2  43.. descriptor types
func prepareCopyParameters(_ *Device, t *Task) error {
	be := binary.BigEndian
	b := make([]byte, 44, 44+len(copyTypes))
	b[4] = 0x01 // SNLID: LIST ID USAGE may be 11b
	be.PutUint16(b[8:], maxCopyEnds)
	be.PutUint16(b[10:], maxCopySegments)
	be.PutUint32(b[12:], maxCopyDescriptors)
	be.PutUint32(b[16:], maxCopySegment)
	be.PutUint16(b[34:], maxCopies)
	b[36] = maxCopies
	b[37] = copyGranularityLog
	b[43] = byte(len(copyTypes))
	b = append(b, copyTypes[:]...)
	be.PutUint32(b, uint32(len(b)-4))
	t.reply(b, be.Uint32(t.CDB[10:]))
	return nil
}

// Third-party copy descriptors (SPC-4, 7.8.17).
const (
	copyDescCommands    = 0x0001
	copyDescParameters  = 0x0004
	copyDescDescriptors = 0x0008
	copyDescIDs         = 0x000c
	copyDescOperations  = 0x8001
)

// thirdPartyCopy makes the body of the Third-party Copy page.
func thirdPartyCopy() []byte {
	be := binary.BigEndian
	commands := []byte{0, opCopyOut, 1, copyActionLID1, opCopyIn, 3, copyActionStatus, copyActionParameters, copyActionDetails}
	commands[0] = byte(len(commands) - 1)

	parameters := make([]byte, 28)
	be.PutUint16(parameters[4:], maxCopyEnds)
	be.PutUint16(parameters[6:], maxCopySegments)
	be.PutUint32(parameters[8:], maxCopyDescriptors)

	ids := be.AppendUint16([]byte{0, 2}, cscdThisUnit)

	operations := make([]byte, 32)
	be.PutUint32(operations, maxCopies)
	be.PutUint32(operations[4:], maxCopies)
	be.PutUint32(operations[8:], maxCopySegment)
	operations[12] = copyGranularityLog

	b := appendCopyDescriptor(nil, copyDescCommands, commands)
	b = appendCopyDescriptor(b, copyDescParameters, parameters)
	b = appendCopyDescriptor(b, copyDescDescriptors, append([]byte{byte(len(copyTypes))}, copyTypes[:]...))
	b = appendCopyDescriptor(b, copyDescIDs, ids)
	return appendCopyDescriptor(b, copyDescOperations, operations)
}

// appendCopyDescriptor pads a descriptor to a multiple of four bytes.
func appendCopyDescriptor(b []byte, kind uint16, body []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, kind)
	padded := (len(body) + 3) &^ 3
	b = binary.BigEndian.AppendUint16(b, uint16(padded))
	b = append(b, body...)
	return append(b, make([]byte, padded-len(body))...)
}
