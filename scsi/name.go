package scsi

// CommandName is the name of a CDB's command, "" for one that no row of the table of commands has. Where an opcode has
// service actions, byte 1 holds the action (SPC-4, 4.3.4.2), as in all of the table's.
func CommandName(cdb []byte) string {
	if len(cdb) < 2 {
		return ""
	}
	for _, op := range byOpcode[cdb[0]] {
		if op.action == noAction || op.action == int(cdb[1]&0x1f) {
			return op.name
		}
	}
	return ""
}
