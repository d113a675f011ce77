package scsi

// CommandName is the name of a CDB's command, "" for one that no row of the table of commands has. Where an opcode has
// service actions, byte 1 holds the action (SPC-4, 4.3.4.2), as in all of the table's; a CDB has more than one byte.
func CommandName(cdb []byte) string {
	op, err := lookup(cdb)
	if err != nil || len(cdb) < 2 {
		return ""
	}
	return op.name
}
