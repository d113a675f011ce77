package provider

import (
	"errors"
	"fmt"
	"os"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// ErrNoPackets: a device, or the kernel, makes the packets of verbs. They cannot be captured here.
var ErrNoPackets = errors.New("only the packets of our own RoCE (provider roce) can be captured; for TCP use tcpdump, for an RDMA device its vendor's sniffer or tcpdump on the interface, for rxe tcpdump port 4791")

// Watch shows the packets of our own RoCE to w from now on; nil ends it. Without it the error wraps ErrNoPackets.
func (p *Provider) Watch(w link.Watcher) error {
	for _, q := range p.list {
		if r, ok := q.(*roce.Provider); ok {
			r.Watch(w)
			return nil
		}
	}
	return fmt.Errorf("provider %s: %w", p.name, ErrNoPackets)
}

// DefaultPacketLimit is how long a file of packets may get if nobody says, as ParsePacketLimit has it.
const DefaultPacketLimit = "1GiB"

// ParsePacketLimit reads the limit of a file of packets, in bytes; 0: none.
func ParsePacketLimit(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	n, err := backstore.ParseSize(s)
	if err != nil || n < capture.MinLimit {
		return 0, fmt.Errorf("want a size of at least %d bytes, or 0", capture.MinLimit)
	}
	return n, nil
}

// PacketNote says in words what is in a file of packets.
func PacketNote(n capture.Counters) string {
	note := fmt.Sprintf("%d packets, %d bytes", n.Packets-n.Dropped, n.Bytes)
	if n.Dropped > 0 {
		note += fmt.Sprintf("; %d more are not there: they came faster than the file takes them, or beyond --pcap-limit", n.Dropped)
	}
	return note
}

// A PacketFile is a file that packets go to. It can be started and stopped while connections run.
type PacketFile struct {
	f       *os.File
	c       *capture.Capture
	watched []*Provider
}

// NewPacketFile makes a file, of at most limit bytes (0: of any size). Only its owner may read it: it will have all data
// in it. An existing file is overwritten; a pipe will do.
func NewPacketFile(path string, limit int64, application string) (*PacketFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	c, err := capture.New(f, capture.Options{Limit: limit, Application: application})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &PacketFile{f: f, c: c}, nil
}

// Add has the packets of one more provider written.
func (p *PacketFile) Add(q *Provider) error {
	if err := q.Watch(p.c); err != nil {
		return err
	}
	p.watched = append(p.watched, q)
	return nil
}

// Stop ends the capture and closes the file. The counters say what is in it.
func (p *PacketFile) Stop() (capture.Counters, error) {
	for _, q := range p.watched {
		_ = q.Watch(nil) // it could before
	}
	err := errors.Join(p.c.Close(), p.f.Close())
	return p.c.Counters(), err
}
