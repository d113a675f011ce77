package scsi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reservationTable says which commands are allowed (A) in the presence of somebody else's reservation, and
// which conflict (C): written down from SPC-4 (5.12.1, commands allowed in the presence of various
// reservations) and SBC-3 (4.17, the same), with the columns of those tables, and from SPC-2, 5.5.1 and
// annex B, for RESERVE. Of what SPC-4 leaves to the device server (REPORT CAPABILITIES, ALLOW COMMANDS)
// write exclusive lets all through. The last bytes are CDB fields where they matter.
//
//	RESERVE by another | write exclusive, exclusive access: from any | registrants: from a registered
//	one | write exclusive, exclusive access of registrants: from an unregistered one
const reservationTable = `
TEST UNIT READY                             C  A A  A  A A
REQUEST SENSE                               A  A A  A  A A
READ(6)                                     C  A C  A  A C
WRITE(6)                                    C  C C  A  C C
INQUIRY                                     A  A A  A  A A
MODE SELECT(6)                              C  C C  A  C C
MODE SENSE(6)                               C  A C  A  A C
START STOP UNIT                             A  A A  A  A A  4:01 START
START STOP UNIT                             C  C C  A  C C  4:00
START STOP UNIT                             C  C C  A  C C  4:11 POWER CONDITION
PREVENT ALLOW MEDIUM REMOVAL                A  A A  A  A A  4:00
PREVENT ALLOW MEDIUM REMOVAL                C  C C  A  C C  4:01 PREVENT
READ CAPACITY(10)                           A  A A  A  A A
READ(10)                                    C  A C  A  A C
WRITE(10)                                   C  C C  A  C C
WRITE AND VERIFY(10)                        C  C C  A  C C
VERIFY(10)                                  C  A C  A  A C
PRE-FETCH(10)                               C  A C  A  A C
SYNCHRONIZE CACHE(10)                       C  C C  A  C C
READ DEFECT DATA(10)                        C  A C  A  A C
WRITE SAME(10)                              C  C C  A  C C
UNMAP                                       C  C C  A  C C
SANITIZE                                    C  C C  A  C C
MODE SELECT(10)                             C  C C  A  C C
MODE SENSE(10)                              C  A C  A  A C
PERSISTENT RESERVE IN                       C  A A  A  A A
EXTENDED COPY                               C  C C  A  C C
RECEIVE COPY                                C  A A  A  A A
READ(16)                                    C  A C  A  A C
COMPARE AND WRITE                           C  C C  A  C C
WRITE(16)                                   C  C C  A  C C
ORWRITE(16)                                 C  C C  A  C C
WRITE AND VERIFY(16)                        C  C C  A  C C
VERIFY(16)                                  C  A C  A  A C
PRE-FETCH(16)                               C  A C  A  A C
SYNCHRONIZE CACHE(16)                       C  C C  A  C C
WRITE SAME(16)                              C  C C  A  C C
WRITE ATOMIC(16)                            C  C C  A  C C
READ CAPACITY(16)                           A  A A  A  A A
GET LBA STATUS                              C  A C  A  A C
REPORT LUNS                                 A  A A  A  A A
REPORT TARGET PORT GROUPS                   A  A A  A  A A
REPORT SUPPORTED OPERATION CODES            C  A C  A  A C
REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS  C  A C  A  A C
SET TARGET PORT GROUPS                      C  C C  A  C C
READ(12)                                    C  A C  A  A C
WRITE(12)                                   C  C C  A  C C
WRITE AND VERIFY(12)                        C  C C  A  C C
VERIFY(12)                                  C  A C  A  A C
READ DEFECT DATA(12)                        C  A C  A  A C
`

// A tableRow is a line of reservationTable.
type tableRow struct {
	name    string
	columns string // six of A and C
	at      int    // of a CDB byte that matters, 0: none
	value   byte
}

func readTable(t *testing.T) (rows []tableRow) {
	for line := range strings.Lines(strings.TrimPrefix(reservationTable, "\n")) {
		r := tableRow{name: strings.TrimSpace(line[:44])}
		fields := strings.Fields(line[44:])
		require.GreaterOrEqual(t, len(fields), 6, line)
		r.columns = strings.Join(fields[:6], "")
		require.Empty(t, strings.Trim(r.columns, "AC"), line)
		if len(fields) > 6 {
			_, err := fmt.Sscanf(fields[6], "%d:%02x", &r.at, &r.value)
			require.NoError(t, err, line)
		}
		rows = append(rows, r)
	}
	return rows
}

// rowsOf are the lines for an operation: of its name, or of the name without what follows a comma or, of
// the copy commands, a bracket.
func rowsOf(rows []tableRow, op *operation) (found []tableRow) {
	for _, r := range rows {
		short, _, _ := strings.Cut(op.name, ",")
		if r.name == short || strings.Contains(r.name, " COPY") && strings.HasPrefix(op.name, r.name) {
			found = append(found, r)
		}
	}
	return found
}

// conflicts reports whether a command is answered with RESERVATION CONFLICT. It is not executed.
func (b *bench) conflicts(op *operation, r tableRow) bool {
	cdb := make([]byte, len(op.usage))
	cdb[0], cdb[1] = op.opcode, byte(max(op.action, 0))
	if r.at > 0 {
		cdb[r.at] = r.value
	}
	task := Task{Nexus: b.nexus, CDB: cdb}
	b.d.Prepare(&task)
	defer b.d.Abandon(&task)
	return task.Status == ReservationConflict
}

// Every opcode against every type of reservation, from its holder, from a registered nexus and from one
// that is not, and against RESERVE.
func TestEveryCommandAgainstEveryReservation(t *testing.T) {
	table := readTable(t)
	// Where the table has what a nexus that is no holder may do, by type. Of types 7 and 8 every registered
	// nexus is a holder, to which the column of registrants applies.
	registeredColumn := map[reservationKind]int{1: 1, 3: 2, 5: 3, 6: 3, 7: 3, 8: 3}
	unregisteredColumn := map[reservationKind]int{1: 1, 3: 2, 5: 4, 6: 5, 7: 4, 8: 5}
	for i := range operations {
		op := &operations[i]
		if strings.HasPrefix(op.name, "PERSISTENT RESERVE OUT") || op.access == accessOwn {
			continue // TestReservationAndItsEnd, TestPreempt and so on; TestReserveBesideRegistrations
		}
		rows := rowsOf(table, op)
		require.NotEmpty(t, rows, "%s: what do SPC-4 and SBC-3 say of it?", op.name)
		for _, row := range rows {
			for _, kind := range []reservationKind{1, 3, 5, 6, 7, 8} {
				holder, registered, stranger := trio(t)
				holder.register(keyA)
				registered.register(keyB)
				require.Equal(t, "good", holder.out(prReserve, kind, list(keyA, 0, 0)))
				what := fmt.Sprintf("%s %d:%02x, type %d", op.name, row.at, row.value, kind)
				assert.False(t, holder.conflicts(op, row), "%s, holder", what)
				assert.Equal(t, row.columns[registeredColumn[kind]] == 'C', registered.conflicts(op, row), "%s, registered", what)
				assert.Equal(t, row.columns[unregisteredColumn[kind]] == 'C', stranger.conflicts(op, row), "%s, not registered", what)
			}
			a, b, _ := trio(t)
			require.Equal(t, Good, a.status(reserve6...))
			own := op.access == accessPersistent // SPC-2, 5.5.1: whosever it is
			assert.Equal(t, own, a.conflicts(op, row), "%s, RESERVE by itself", op.name)
			assert.Equal(t, row.columns[0] == 'C', b.conflicts(op, row), "%s %d:%02x, RESERVE", op.name, row.at, row.value)
		}
	}
	for _, row := range table {
		found := strings.Contains(row.name, " COPY")
		for i := range operations {
			found = found || len(rowsOf([]tableRow{row}, &operations[i])) > 0
		}
		assert.True(t, found, "%s: no such command any more", row.name)
	}
}
