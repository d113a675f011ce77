package scsi

// A Class says what kind of work a command is, for those who count.
type Class uint8

// The classes.
const (
	ClassOther Class = iota // all that moves or changes no blocks
	ClassRead
	ClassWrite
	ClassFlush
	ClassUnmap
	ClassWriteSame
	ClassCompare // COMPARE AND WRITE
	ClassVerify
	ClassCopy
	// Classes is how many there are.
	Classes = iota
)

var classNames = [Classes]string{"other", "read", "write", "flush", "unmap", "write_same", "compare", "verify", "copy"}

// String names a class: lower case, without spaces.
func (c Class) String() string { return classNames[c] }

// classes has the class of each opcode; a service action does not change it.
var classes = [256]Class{
	0x08: ClassRead, 0x28: ClassRead, 0x88: ClassRead, 0xa8: ClassRead,
	0x34: ClassRead, 0x90: ClassRead, // PRE-FETCH reads, though not to the initiator
	0x0a: ClassWrite, 0x2a: ClassWrite, 0x8a: ClassWrite, 0xaa: ClassWrite,
	0x2e: ClassWrite, 0x8e: ClassWrite, 0xae: ClassWrite, // WRITE AND VERIFY
	0x8b: ClassWrite, 0x9c: ClassWrite, // ORWRITE, WRITE ATOMIC
	0x35: ClassFlush, 0x91: ClassFlush,
	0x42: ClassUnmap,
	0x41: ClassWriteSame, 0x93: ClassWriteSame,
	0x89: ClassCompare,
	0x2f: ClassVerify, 0x8f: ClassVerify, 0xaf: ClassVerify,
	opCopyOut: ClassCopy,
}

// ClassOf is the class of a command by its opcode, byte 0 of the CDB. An opcode that no unit knows is ClassOther.
func ClassOf(opcode uint8) Class { return classes[opcode] }
