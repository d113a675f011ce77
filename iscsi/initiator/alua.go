package initiator

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/goiser/goiser/iscsi"
)

// REPORT and SET TARGET PORT GROUPS (SPC-4, 6.37 and 6.45).
const (
	opMaintenanceIn  = 0xa3
	opMaintenanceOut = 0xa4
	actionPortGroups = 0x0a
	maxGroupList     = 4096

	designatorGroup = 0x15 // a target port group, of the port that the command came through (SPC-4, 7.8.6)

	aluaExplicit = 0x2 // of TPGS (SPC-4, 6.6.2)
)

// An AccessState is a path's asymmetric access state (SPC-4, 5.16.2.1).
type AccessState uint8

// Access states, as the wire has them. A unit that knows no others is optimized through every path.
const (
	AccessOptimized     AccessState = 0x0
	AccessNonOptimized  AccessState = 0x1
	AccessStandby       AccessState = 0x2
	AccessUnavailable   AccessState = 0x3
	AccessOffline       AccessState = 0xe
	AccessTransitioning AccessState = 0xf
)

// String is the state in a word.
func (s AccessState) String() string {
	switch s {
	case AccessOptimized:
		return "optimized"
	case AccessNonOptimized:
		return "non-optimized"
	case AccessStandby:
		return "standby"
	case AccessUnavailable:
		return "unavailable"
	case AccessOffline:
		return "offline"
	case AccessTransitioning:
		return "transitioning"
	}
	return fmt.Sprintf("access state %#x", uint8(s))
}

// usable: blocks can be read and written.
func (s AccessState) usable() bool { return s <= AccessNonOptimized }

// portGroup finds the group of the port that the page came through.
func portGroup(page []byte) (group uint16, ok bool) {
	eachDesignator(page, func(b []byte) {
		if b[1]&0x3f == designatorGroup && b[3] == 4 {
			group, ok = binary.BigEndian.Uint16(b[6:]), true
		}
	})
	return group, ok
}

// eachDesignator calls see for each whole designator of a Device Identification page, with its header.
func eachDesignator(page []byte, see func(b []byte)) {
	for b := page[min(4, len(page)):]; len(b) >= 4 && len(b) >= 4+int(b[3]); b = b[4+int(b[3]):] {
		see(b[:4+int(b[3])])
	}
}

// tpgs reads how a unit's access states change: TPGS of standard INQUIRY data; 0: they do not.
func (s *Session) tpgs(ctx context.Context, lun iscsi.LUN) (uint8, error) {
	b, err := s.Inquiry(ctx, lun, false, 0)
	if err != nil || len(b) < 6 {
		return 0, err
	}
	return b[5] >> 4 & 3, nil
}

// access asks for the state of a port group. A unit that does not tell gives access.
func (s *Session) access(ctx context.Context, d *Disk, group uint16) (state AccessState, preferred bool, err error) {
	cdb := []byte{opMaintenanceIn, actionPortGroups, 0, 0, 0, 0, 0, 0, maxGroupList >> 8, maxGroupList & 0xff, 0, 0}
	b, err := s.attentive(ctx, d.lun, d, cdb, maxGroupList)
	if isIllegalRequest(err) {
		return AccessOptimized, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return parseGroups(b, group)
}

// parseGroups finds a group in REPORT TARGET PORT GROUPS data.
//
//	4.. for each group: 0 PREF, state  2..3 group  7 ports  8.. four bytes a port
func parseGroups(b []byte, group uint16) (state AccessState, preferred bool, err error) {
	if len(b) < 4 {
		return 0, false, violation("REPORT TARGET PORT GROUPS answered with %d bytes", len(b))
	}
	list := b[4:]
	if n := binary.BigEndian.Uint32(b); uint64(n) < uint64(len(list)) {
		list = list[:n]
	}
	for len(list) >= 8 {
		if binary.BigEndian.Uint16(list[2:]) == group {
			return AccessState(list[0] & 0xf), list[0]&0x80 != 0, nil
		}
		list = list[min(8+4*int(list[7]), len(list)):]
	}
	return 0, false, violation("REPORT TARGET PORT GROUPS does not tell of group %d", group)
}

// setAccess asks the unit to make a port group optimized (explicit ALUA).
func (s *Session) setAccess(ctx context.Context, d *Disk, group uint16) error {
	list := binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0, byte(AccessOptimized), 0}, group)
	return s.order(ctx, d, []byte{opMaintenanceOut, actionPortGroups, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}, list)
}
