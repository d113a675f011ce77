// Package packets has the file that both commands write the packets of our own RoCE to.
package packets

import (
	"errors"
	"fmt"
	"os"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
)

// DefaultLimit is how long a file of packets may get if nobody says, as ParseLimit has it.
const DefaultLimit = "1GiB"

// ParseLimit reads the limit of a file of packets, in bytes; 0: none.
func ParseLimit(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	n, err := backstore.ParseSize(s)
	if err != nil || n < capture.MinLimit {
		return 0, fmt.Errorf("want a size of at least %d bytes, or 0", capture.MinLimit)
	}
	return n, nil
}

// Note says in words what is in a file of packets.
func Note(n capture.Counters) string {
	note := fmt.Sprintf("%d packets, %d bytes", n.Packets-n.Dropped, n.Bytes)
	if n.Dropped > 0 {
		note += fmt.Sprintf("; %d more are not there: they came faster than the file takes them, or beyond --pcap-limit", n.Dropped)
	}
	return note
}

// A File is one that packets go to. It can be started and stopped while connections run.
type File struct {
	f       *os.File
	c       *capture.Capture
	watched []*provider.Provider
}

// NewFile makes a file, of at most limit bytes (0: of any size). Only its owner may read it: it will have all data
// in it. An existing file is overwritten; a pipe will do.
func NewFile(path string, limit int64, application string) (*File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	c, err := capture.New(f, capture.Options{Limit: limit, Application: application})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{f: f, c: c}, nil
}

// Add has the packets of one more provider written.
func (p *File) Add(q *provider.Provider) error {
	if err := q.Watch(p.c); err != nil {
		return err
	}
	p.watched = append(p.watched, q)
	return nil
}

// Stop ends the capture and closes the file. The counters say what is in it.
func (p *File) Stop() (capture.Counters, error) {
	for _, q := range p.watched {
		_ = q.Watch(nil) // it could before
	}
	err := errors.Join(p.c.Close(), p.f.Close())
	return p.c.Counters(), err
}
