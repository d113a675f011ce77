package backstore

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/backstore/gotgt"
)

// A gotgtStore is a plug-in of gotgt. It can do nothing optional: plug-ins say that they have unmapped and have not.
type gotgtStore struct {
	name string // for errors
	d    *gotgt.Device
	null bool
}

func openGotgt(s settings) (Store, error) {
	g := &gotgtStore{name: fmt.Sprintf("gotgt store %s:%s", s["plugin"], s["path"]), null: s["plugin"] == "null"}
	if g.null && s.size("size") == 0 {
		return nil, &OptionError{Type: "gotgt", Option: "size", Err: errors.New("missing: the null plug-in has no size of its own")}
	}
	var err error
	if g.d, err = gotgt.Open(s["plugin"], s["path"], s.size("size")); err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	return g, nil
}

func (g *gotgtStore) ReadAt(bufs [][]byte, off int64) error {
	return g.request("read", bufs, off, func() error { return g.d.ReadAt(bufs, off) })
}

func (g *gotgtStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	return g.request("write", bufs, off, func() error { return g.d.WriteAt(bufs, off, fua) })
}

func (g *gotgtStore) request(op string, bufs [][]byte, off int64, do func() error) error {
	err := ErrRange
	if inRange(bufs, off, g.d.SizeBytes()) {
		err = do()
	}
	if err != nil {
		return requestError(g.name, op, bufs, off, cause(err))
	}
	return nil
}

func (g *gotgtStore) Flush() error {
	if err := g.d.Flush(); err != nil {
		return fmt.Errorf("%s: flush: %w", g.name, cause(err))
	}
	return nil
}

// Info promises no more than every plug-in keeps.
func (g *gotgtStore) Info() Info {
	return Info{SizeBytes: g.d.SizeBytes(), BlockSize: MinBlock, WriteCache: !g.null, Volatile: g.null}
}

func (g *gotgtStore) Close() error {
	if err := g.d.Close(); err != nil {
		return fmt.Errorf("%s: close: %w", g.name, err)
	}
	return nil
}
