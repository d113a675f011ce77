package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/packets"
	"github.com/goiser/goiser/iser/rdma/provider"
)

// A tracer captures packets of our own RoCE while connections run, when the administrator asks for it.
type tracer struct {
	mu   sync.Mutex
	file *packets.File // nil: no capture is running
	path string
	busy bool // --pcap has the packets
}

func (t *tracer) state() admin.Trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	return admin.Trace{Running: t.file != nil, File: t.path}
}

// start begins a capture of all providers that are in use. The file must not be there yet: who may ask us to write need
// not have the right to write over whatever we may.
func (t *tracer) start(s *service, r admin.TraceRequest) (admin.Trace, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.busy:
		return admin.Trace{}, &admin.Error{Message: "iserd --pcap captures the packets already", What: "trace", Code: admin.CodeInUse}
	case t.file != nil:
		return admin.Trace{}, &admin.Error{Message: "a capture to " + t.path + " is running", What: "trace", Todo: "iser trace stop ends it", Code: admin.CodeInUse}
	case !filepath.IsAbs(r.File):
		return admin.Trace{}, badRequest("trace", fmt.Sprintf("%q is no absolute path", r.File), "give one on the daemon's host")
	}
	if r.Limit == "" {
		r.Limit = packets.DefaultLimit
	}
	limit, err := packets.ParseLimit(r.Limit)
	if err != nil {
		return admin.Trace{}, badRequest("trace", fmt.Sprintf("limit %q: %v", r.Limit, err), "")
	}
	watched := s.watchable()
	if len(watched) == 0 {
		return admin.Trace{}, &admin.Error{Message: provider.ErrNoPackets.Error(), What: "trace", Code: admin.CodeOther}
	}
	// It is made here, so that one that is there is left alone.
	f, err := os.OpenFile(r.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return admin.Trace{}, &admin.Error{Message: "there is such a file already", What: "trace to " + r.File, Todo: "give another name", Code: admin.CodeDiffers}
	}
	if err != nil {
		return admin.Trace{}, fmt.Errorf("trace: %w", err)
	}
	if err := f.Close(); err != nil {
		return admin.Trace{}, fmt.Errorf("trace: %w", err)
	}
	file, err := packets.NewFile(r.File, limit, "iserd "+version)
	if err != nil {
		return admin.Trace{}, fmt.Errorf("trace: %w", err)
	}
	for _, p := range watched {
		if err := file.Add(p); err != nil {
			_, serr := file.Stop()
			return admin.Trace{}, errors.Join(fmt.Errorf("trace: %w", err), serr)
		}
	}
	t.file, t.path = file, r.File
	return admin.Trace{Running: true, File: t.path}, nil
}

// stop ends a capture and says what is in it.
func (t *tracer) stop() (admin.Trace, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return admin.Trace{}, &admin.Error{Message: "no capture is running", What: "trace stop", Code: admin.CodeNotFound}
	}
	n, err := t.file.Stop()
	v := admin.Trace{File: t.path, Note: packets.Note(n)}
	t.file, t.path = nil, ""
	if err != nil {
		return v, fmt.Errorf("trace to %s: some packets may be missing: %w", v.File, err)
	}
	return v, nil
}

// watchable are the providers whose packets can be captured.
func (s *service) watchable() (list []*provider.Provider) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.providers {
		if c, ok := p.(*provider.Provider); ok && c.RoCE() != nil {
			list = append(list, c)
		}
	}
	return list
}
