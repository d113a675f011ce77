package scsi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
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
	identity [sha256.Size]byte

	blockSize    uint64
	maxBlocks    uint64 // of one command
	physicalExp  uint8  // physical blocks are 1<<physicalExp logical ones
	readOnly     bool
	writeCache   bool
	mayBlock     bool
	capacity     atomic.Uint64 // blocks
	stopped      atomic.Bool   // START STOP UNIT
	commands     atomic.Uint64
	readBytes    atomic.Uint64
	writtenBytes atomic.Uint64
	errors       atomic.Uint64

	// reservations is nil as long as nobody has reserved or registered. Replaced under Device.mu.
	reservations atomic.Pointer[reservations]

	// A task holds its unit by refs. Once removed is set nobody new gets hold; idle is signalled when
	// refs falls to 0 after that.
	refs    atomic.Int64
	removed atomic.Bool
	idle    chan struct{}
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
		readOnly:   c.ReadOnly || info.ReadOnly,
		writeCache: info.WriteCache,
		mayBlock:   !info.NeverBlocks,
		idle:       make(chan struct{}, 1),
	}
	if info.NeverBlocks {
		lu.mapper, _ = s.(backstore.Mapper)
	}
	if ratio := info.BlockSize / c.BlockSize; ratio > 1 {
		lu.physicalExp = uint8(min(bits.Len(uint(ratio))-1, maxPhysicalExp))
	}
	if lu.maxBlocks == 0 {
		return nil, fmt.Errorf("block size %d above the largest transfer, %d bytes", c.BlockSize, d.config.MaxTransfer)
	}
	if err := lu.measure(); err != nil {
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

// CapacityChanged takes the store's new size and tells every nexus (CAPACITY DATA HAS CHANGED, 2A/09).
func (lu *LogicalUnit) CapacityChanged() error {
	if err := lu.measure(); err != nil {
		return fmt.Errorf("lun %d: %w", lu.number, err)
	}
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raiseLocked(lu, capacityChanged, nil)
	return nil
}

// Stats are the unit's counters: commands, bytes read and written, and check conditions.
type Stats struct{ Commands, ReadBytes, WrittenBytes, Errors uint64 }

// Stats reads the counters.
func (lu *LogicalUnit) Stats() Stats {
	return Stats{
		Commands:     lu.commands.Load(),
		ReadBytes:    lu.readBytes.Load(),
		WrittenBytes: lu.writtenBytes.Load(),
		Errors:       lu.errors.Load(),
	}
}

// hold keeps the store in use until release. It fails once the unit has been removed.
func (lu *LogicalUnit) hold() bool {
	lu.refs.Add(1)
	if lu.removed.Load() {
		lu.release()
		return false
	}
	return true
}

func (lu *LogicalUnit) release() {
	n := lu.refs.Add(-1)
	if n < 0 {
		panic(fmt.Sprintf("scsi: lun %d released %d times too often", lu.number, -n))
	}
	if n == 0 && lu.removed.Load() {
		select {
		case lu.idle <- struct{}{}:
		default: // drain has not seen the last signal yet
		}
	}
}

// drain ends the unit's life and waits for whoever holds it. A hold counts itself before it looks at
// removed, and drain looks at the count after it has set removed, so one of them sees the other.
func (lu *LogicalUnit) drain() {
	lu.removed.Store(true)
	for lu.refs.Load() != 0 {
		<-lu.idle
	}
}
