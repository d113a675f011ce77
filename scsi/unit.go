package scsi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/backstore"
)

// LUConfig describes a logical unit.
type LUConfig struct {
	// ID makes the identity (VPD 80h serial, 83h NAA) unique and stable: the same ID always gives the
	// same identity, different IDs different ones. Required.
	ID       string
	ReadOnly bool
	// BlockSize is the logical block size, 512 (default) or 4096 bytes.
	BlockSize int
}

// A LogicalUnit is one disk.
type LogicalUnit struct {
	device   *Device
	number   int
	store    backstore.Store
	mapper   backstore.Mapper // nil unless reads can point at the store's memory
	trier    backstore.Trier  // nil unless the store may block, and can tell of a read whether it would
	zeroer   backstore.Zeroer
	extenter backstore.Extenter
	unmapper backstore.Unmapper // nil unless the unit is thin provisioned
	identity [sha256.Size]byte
	added    uint64     // by Device.epoch
	replaces bool       // its number was another disk's
	changing sync.Mutex // held while an administrator changes it

	blockSize   uint64
	maxBlocks   uint64 // of one command
	atomic      atomicLimits
	unmapUnit   uint64 // blocks that the store gives back together
	physicalExp uint8  // physical blocks are 1<<physicalExp logical ones
	readOnly    atomic.Bool
	rotational  bool
	writeCache  bool
	mayBlock    bool
	volatile    bool // the store keeps nothing
	// state has bits that end the fast way: see gate.go. It is read with every command and hardly ever
	// written, and so apart from the counters.
	state        atomic.Uint32
	capacity     atomic.Uint64 // blocks
	control      atomic.Uint32 // what MODE SELECT has changed
	stopped      atomic.Bool   // START STOP UNIT
	readBytes    atomic.Uint64
	writtenBytes atomic.Uint64
	errors       atomic.Uint64

	groups  []groupAccess                          // guarded by Device.mu
	limited atomic.Pointer[map[uint16]AccessState] // the groups in which not every command is allowed; nil: none

	// reservations is nil as long as nobody has reserved or registered. Replaced under Device.mu.
	reservations atomic.Pointer[reservations]
	registering  sync.Mutex // held by a PERSISTENT RESERVE OUT, which may take as long as a disk
	// copying is held shared by a copy while it reads or writes a chunk here; see waitForCopies.
	copying sync.RWMutex

	// set orders the unit's tasks, and knows when the last of them has gone.
	set taskSet
	// Tasks that enter the gate by the fast way are counted by begun when they enter and by done when they are
	// done, and begun goes back when one is sent away: so begun-done are at the store; see fast for how to read them. All
	// other tasks are counted by passed, when they end.
	begun, done, passed atomic.Uint64
	gate                gate
	sanitize            sanitizer
}

// maxPhysicalExp is the largest LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT (SBC-3, 5.16.2: 4 bits).
const maxPhysicalExp = 15

func newLogicalUnit(d *Device, number int, s backstore.Store, c LUConfig) (*LogicalUnit, error) {
	if c.ID == "" {
		return nil, errors.New("no ID")
	}
	switch c.BlockSize {
	case 0:
		c.BlockSize = 512
	case 512, 4096:
	default:
		return nil, fmt.Errorf("block size %d: neither 512 nor 4096", c.BlockSize)
	}
	info := s.Info()
	lu := &LogicalUnit{
		device: d, number: number, store: s,
		identity:   sha256.Sum256([]byte(c.ID)),
		blockSize:  uint64(c.BlockSize),
		maxBlocks:  uint64(d.config.MaxTransfer) / uint64(c.BlockSize),
		rotational: info.Rotational,
		writeCache: info.WriteCache,
		mayBlock:   !info.NeverBlocks,
		volatile:   info.Volatile,
	}
	lu.readOnly.Store(c.ReadOnly || info.ReadOnly)
	lu.gate.change.L = &lu.gate.mu
	lu.set.open()
	if !info.NeverBlocks {
		lu.trier, _ = s.(backstore.Trier)
	} else {
		lu.mapper, _ = s.(backstore.Mapper)
	}
	if ratio := info.BlockSize / c.BlockSize; ratio > 1 {
		lu.physicalExp = uint8(min(bits.Len(uint(ratio))-1, maxPhysicalExp))
	}
	if lu.maxBlocks == 0 {
		return nil, fmt.Errorf("block size %d above the largest transfer, %d bytes", c.BlockSize, d.config.MaxTransfer)
	}
	lu.setProvisioning(info)
	lu.setAtomicLimits(info.AtomicBytes, info.Volatile)
	if err := lu.measure(); err != nil {
		return nil, err
	}
	if err := lu.restore(); err != nil {
		return nil, err
	}
	return lu, nil
}

// measure takes the capacity from the store. A tail shorter than a block is not used.
func (lu *LogicalUnit) measure() error {
	size := lu.store.Info().SizeBytes
	if size < int64(lu.blockSize) {
		return fmt.Errorf("store of %d bytes holds no block of %d", size, lu.blockSize)
	}
	lu.capacity.Store(uint64(size) / lu.blockSize)
	return nil
}

// Store is where the unit's blocks live.
func (lu *LogicalUnit) Store() backstore.Store { return lu.store }

// Number is the logical unit number.
func (lu *LogicalUnit) Number() int { return lu.number }

// Blocks is the capacity in logical blocks, BlockSize their size in bytes.
func (lu *LogicalUnit) Blocks() uint64 { return lu.capacity.Load() }

// BlockSize is the logical block size in bytes.
func (lu *LogicalUnit) BlockSize() int { return int(lu.blockSize) }

// Stats are the unit's counters: commands, bytes read and written, and check conditions.
type Stats struct{ Commands, ReadBytes, WrittenBytes, Errors uint64 }

// Stats reads the counters.
func (lu *LogicalUnit) Stats() Stats {
	return Stats{
		Commands:     lu.done.Load() + lu.passed.Load(),
		ReadBytes:    lu.readBytes.Load(),
		WrittenBytes: lu.writtenBytes.Load(),
		Errors:       lu.errors.Load(),
	}
}

// hold keeps the store in use until release. It fails once the unit has been removed.
func (lu *LogicalUnit) hold() bool { return lu.set.hold() }

func (lu *LogicalUnit) release() { lu.set.release() }
