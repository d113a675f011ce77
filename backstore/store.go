package backstore

import "errors"

// Errors that callers branch on; what a store returns wraps the system's error too.
var (
	ErrReadOnly = errors.New("store is read-only")
	ErrNoSpace  = errors.New("no space left in the store")
	ErrRange    = errors.New("beyond the end of the store")
)

// A Store holds bytes at offsets. Its methods may be called from many goroutines at once. Reads and
// writes are whole or an error: short counts do not exist.
type Store interface {
	// ReadAt fills bufs, in order, from offset off (bytes).
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes bufs, in order, at offset off. The bytes are durable after Flush, or on return if
	// the store's Info says WriteThrough or fua is set.
	WriteAt(bufs [][]byte, off int64, fua bool) error
	// Flush makes every completed write durable as far as the store can promise (Info.Volatile).
	Flush() error
	Info() Info
	// Close flushes and frees the store.
	Close() error
}

// Info is what a store says of itself.
type Info struct {
	SizeBytes int64
	// BlockSize is the smallest unit (bytes) that the store writes without reading first, a power of two
	// of at least 512.
	BlockSize int
	ReadOnly  bool
	// WriteCache: completed writes may still be lost by a power cut until Flush: what MODE SENSE's WCE
	// says.
	WriteCache bool
	// Volatile: nothing survives the process (ram, null).
	Volatile bool
	// NeverBlocks: reads and writes only touch memory and may run on a connection's loop.
	NeverBlocks bool
	// Thin: unwritten or unmapped ranges take no space and read as zeros.
	Thin bool
}

// A Mapper's bytes lie in memory: Map returns those at [off, off+n) without a copy, and Memory the whole
// region, for registration with a transport. They may change while another request writes.
type Mapper interface {
	Map(off int64, n int) []byte
	Memory() []byte
}

// Options are a store's settings, by name: what YAML or a command line gives.
type Options map[string]string

// Open makes a store of a type (ram, file, null) with options. One table of types and options serves
// the configuration file, the command line and the help text; see Types. An error names the store's
// type, the option or path, and what was expected.
func Open(typ string, opts Options) (Store, error) { panic("not written") }

// A Type describes one kind of store.
type Type struct {
	Name    string
	Summary string
	Options []Option
}

// An Option is a setting of a Type.
type Option struct {
	Name     string
	Required bool
	Default  string
	Summary  string // with its unit or values
}

// Types lists every kind of store, by name.
func Types() []Type { panic("not written") }

// ParseSize reads a size in bytes: "4096", "4k", "4KiB", "1.5GiB" (IEC; k, m, g, t mean 1024 powers).
func ParseSize(s string) (int64, error) { panic("not written") }
