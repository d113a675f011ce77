package scsi

import "github.com/goiser/goiser/backstore"

// Limits of the provisioning commands, as VPD page B0h tells them (SBC-3, 6.5.3).
const (
	// maxUnmapBlocks is MAXIMUM UNMAP LBA COUNT: 512 MiB of 512-byte blocks, so that one command does not
	// keep a worker for long.
	maxUnmapBlocks = 1 << 20
	// maxUnmapDescriptors is MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
	maxUnmapDescriptors = 256
	// maxWriteSameBytes makes MAXIMUM WRITE SAME LENGTH, in bytes: what a slow disk writes in a fraction of
	// a second.
	maxWriteSameBytes = 16 << 20
)

// loopBytes is the most that a command reads or writes on a connection's loop beyond the data that it moves, of
// a store that does not block, in bytes: some ten microseconds.
const loopBytes = 128 << 10

// What GET LBA STATUS and READ CAPACITY(16) call provisioning (SBC-3, 4.7).
const (
	lbpUnmap       = 0x80 // LBPU: the UNMAP command
	lbpWriteSame16 = 0x40 // LBPWS: the UNMAP bit of WRITE SAME(16)
	lbpWriteSame10 = 0x20 // LBPWS10
	lbpReadsZeros  = 0x04 // LBPRZ: what is unmapped reads as zeros
	provisionThin  = 0x02 // PROVISIONING TYPE

	capacityLBPME = 0x80 // of READ CAPACITY(16), byte 14
	capacityLBPRZ = 0x40
)

// provisioned reports whether the unit does logical block provisioning management (LBPME): its store takes
// no space for what is not written, and gives it back. Then UNMAP and the UNMAP bits are there, and else
// none of them.
func (lu *LogicalUnit) provisioned() bool { return lu.unmapper != nil }

func (lu *LogicalUnit) setProvisioning(info backstore.Info) {
	lu.zeroer, _ = lu.store.(backstore.Zeroer)
	lu.extenter, _ = lu.store.(backstore.Extenter)
	if info.Thin {
		lu.unmapper, _ = lu.store.(backstore.Unmapper)
	}
	if granularity := uint64(max(info.UnmapGranularity, 0)); granularity > lu.blockSize {
		lu.unmapUnit = granularity / lu.blockSize
	} else {
		lu.unmapUnit = 1
	}
}

// maxWriteSame is MAXIMUM WRITE SAME LENGTH, in blocks.
func (lu *LogicalUnit) maxWriteSame() uint64 { return maxWriteSameBytes / lu.blockSize }

// provisioning makes the body of the Logical Block Provisioning page (SBC-3, 6.5.4).
//
//	0 THRESHOLD EXPONENT: no threshold  1 LBPU LBPWS LBPWS10 LBPRZ ANC_SUP DP  2 PROVISIONING TYPE
func (lu *LogicalUnit) provisioning() []byte {
	b := make([]byte, 4)
	if lu.provisioned() {
		b[1] = lbpUnmap | lbpWriteSame16 | lbpWriteSame10 | lbpReadsZeros
		b[2] = provisionThin
	}
	return b
}
