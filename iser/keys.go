package iser

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

// windowRights are what memory behind windows grants by itself: nothing to the peer.
const windowRights = rdma.LocalWrite | rdma.WindowBind

// headerAndData is how many pieces a Send of data in place has.
const headerAndData = 2

// errNoWindows: see iscsi.Registrar.
var errNoWindows = fmt.Errorf("memory to be used in place: the device has no memory windows, or Sends of one piece only: %w", errors.ErrUnsupported)

// A keyring holds a connection's memory windows: each gives one command's memory a key that ends with the command
// (IBTA, 10.6.7.2, type 2). They are used in turn, so that a dead key's number comes back as late as can be.
type keyring struct {
	all  []rdma.Window
	free queue[rdma.Window]
}

// newKeyring makes n windows. An error means that the device has not so many.
func newKeyring(dev rdma.Device, n int) (*keyring, error) {
	k := &keyring{}
	for range n {
		w, err := dev.NewWindow()
		if err != nil {
			return nil, errors.Join(err, k.close())
		}
		k.all = append(k.all, w)
		k.free.push(w)
	}
	return k, nil
}

// take takes a window that is not bound; false if the caller has to wait for another command's end.
func (k *keyring) take() (rdma.Window, bool) {
	if k.free.len() == 0 {
		return nil, false
	}
	return k.free.pop(), true
}

// put gives back a window whose key is dead.
func (k *keyring) put(w rdma.Window) { k.free.push(w) }

// close frees the windows. The queue pair must be gone.
func (k *keyring) close() error {
	var errs []error
	for _, w := range k.all {
		errs = append(errs, w.Close())
	}
	k.all, k.free = nil, queue[rdma.Window]{}
	return errors.Join(errs...)
}

// openMemory makes what commands offer to the peer. With windows the pools themselves grant the peer nothing.
// Without them (devices that have none, not enough of them, or that a hostile target could bring down by them) keys are permanent, and we say so in the CM
// private data. Either way a key grants what its direction needs and no more; remote write needs local write (IBTA,
// 10.6.3.1).
func (i *initiator) openMemory() (err error) {
	sink, source := rdma.LocalWrite|rdma.RemoteWrite, rdma.RemoteRead
	if lim := i.dev.Limits(); lim.Windows && !lim.WindowHazard && !i.config.NoInvalidate {
		if i.keys, err = newKeyring(i.dev, i.config.QueueDepth); err == nil {
			sink, source = windowRights, rdma.WindowBind
		}
	}
	if i.sink, err = newPool(i.dev, i.config.PoolBytes/2, sink); err != nil {
		return err
	}
	i.source, err = newPool(i.dev, i.config.PoolBytes/2, source)
	return err
}

// closeMemory undoes openMemory, and every registration. The queue pair must be gone.
func (i *initiator) closeMemory() error {
	var errs []error
	if i.keys != nil {
		errs = append(errs, i.keys.close()) // before the regions to which they may be bound
	}
	for _, p := range []*pool{i.sink, i.source} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	i.keys, i.sink, i.source = nil, nil, nil
	return errors.Join(append(errs, i.dev.closeRegions())...)
}

// Register implements iscsi.Registrar.
func (i *initiator) Register(mem []byte) error {
	if i.err != nil {
		return i.err
	}
	if i.keys == nil || i.maxSGE < headerAndData {
		return errNoWindows
	}
	return i.dev.register(mem)
}

// Unregister implements iscsi.Registrar.
func (i *initiator) Unregister(mem []byte) error { return i.dev.unregister(mem) }
