package roce

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
)

// What the device offers. They are bounds on memory that a caller makes us take: nothing in the protocol knows them.
const (
	maxMessage   = 1 << 31 // IBTA 9.7.7.1.1
	maxSGE       = 32
	maxQPDepth   = 1 << 14
	maxCQDepth   = 1 << 20
	maxReadDepth = 128
)

// A device is a provider's memory. All its ports share it.
type device struct {
	memory *rc.Memory
}

// Name implements rdma.Device.
func (d *device) Name() string { return "roce" }

// Limits implements rdma.Device.
func (d *device) Limits() rdma.Limits {
	return rdma.Limits{
		MaxMessage: maxMessage, MaxSGE: maxSGE, MaxReadSGE: maxSGE, MaxQPDepth: maxQPDepth, MaxCQDepth: maxCQDepth, MaxReadDepth: maxReadDepth,
		SendInvalidate: true, Windows: true,
	}
}

// Register implements rdma.Device. mem may be on Go's heap.
func (d *device) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	mr, err := d.memory.Register(mem, access)
	if err != nil {
		return nil, fmt.Errorf("roce: %w", err)
	}
	return mr, nil
}

// NewWindow implements rdma.Device.
func (d *device) NewWindow() (rdma.Window, error) {
	w, err := d.memory.NewWindow()
	if err != nil {
		return nil, fmt.Errorf("roce: %w", err)
	}
	return w, nil
}
