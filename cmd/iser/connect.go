package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// A blockDevice is what dd and bench need of a disk.
type blockDevice interface {
	SizeBytes() int64
	BlockSize() int
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64) error
	Flush(ctx context.Context) error
}

// transport makes the transport that a URL asks for.
func (a *app) transport(u dial.URL) (initiator.Transport, error) {
	if u.Transport == "tcp" {
		if a.packets.path != "" {
			return nil, usage(fmt.Errorf("--pcap with %s: %w", u, provider.ErrNoPackets))
		}
		return &tcp.Dialer{}, nil
	}
	p, err := a.rdma(u)
	if err != nil {
		return nil, err
	}
	return &iser.Dialer{Provider: p, Config: iser.InitiatorConfig{PartialImmediate: a.tune.partialImmediate}}, nil
}

// rdma opens the provider that a URL asks for. All URLs of one command share it: a copy between two
// targets asks for one provider.
func (a *app) rdma(u dial.URL) (*provider.Provider, error) {
	if a.provider != nil {
		if a.provider.Name() != u.RDMA {
			return nil, usage(fmt.Errorf("rdma=%s and rdma=%s in one command: want the same", a.provider.Name(), u.RDMA))
		}
		return a.provider, nil
	}
	var o roce.Options
	if a.source != "" {
		o.Addr = netip.MustParseAddr(a.source) // app.check has seen it
	}
	var err error
	if a.provider, err = provider.Open(u.RDMA, o); err != nil {
		return nil, err
	}
	return a.provider, a.packets.start(a.provider)
}

// negotiate turns the tuning flags into what we offer.
func (a *app) negotiate() (*iscsi.Config, error) {
	c := iscsi.DefaultConfig()
	if s := a.tune.initialR2T; s != "" {
		b, err := yesNo("--initial-r2t", s)
		if err != nil {
			return nil, err
		}
		c.InitialR2T = &b
	}
	var err error
	if c.ImmediateData, err = yesNo("--immediate-data", a.tune.immediateData); err != nil {
		return nil, err
	}
	if err := burst("--first-burst", a.tune.firstBurst, &c.FirstBurstLength); err != nil {
		return nil, err
	}
	return &c, burst("--max-burst", a.tune.maxBurst, &c.MaxBurstLength)
}

func yesNo(flag, s string) (bool, error) {
	on, err := backstore.ParseSwitch(s)
	if err != nil {
		return false, usage(fmt.Errorf("%s %w", flag, err))
	}
	return on, nil
}

// burst parses a burst length flag: 512 bytes to 16 MiB - 1 (RFC 7143, 13.13 and 13.14).
func burst(flag, s string, n *uint32) error {
	if s == "" {
		return nil
	}
	v, err := backstore.ParseSize(s)
	if err != nil || v < 512 || v > 1<<24-1 {
		return usage(fmt.Errorf("%s %q: want a size from 512 to 16777215 bytes", flag, s))
	}
	*n = uint32(v)
	return nil
}

// options are how to log in at a URL.
func (a *app) options(u *dial.URL) (initiator.Options, error) {
	n, err := a.negotiate()
	if err != nil {
		return initiator.Options{}, err
	}
	c, err := a.credentials(u)
	return initiator.Options{InitiatorName: a.name, Negotiate: n, LoginTimeout: a.timeout, QueueDepth: a.depth, CHAP: c, Log: a.log()}, err
}

func (a *app) discover(ctx context.Context, u dial.URL) ([]initiator.TargetRecord, error) {
	o, err := a.options(&u)
	if err != nil {
		return nil, err
	}
	tr, err := a.transport(u)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	recs, err := initiator.Discover(ctx, tr, u.Address, o)
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", u, err)
	}
	return recs, nil
}

// session logs in, finding the only target if none is named.
func (a *app) session(ctx context.Context, u *dial.URL) (*initiator.Session, error) {
	return logIn(ctx, a, u, nil, initiator.Open)
}

// connection is session for one that outlives its sessions; more changes how it logs in.
func (a *app) connection(ctx context.Context, u *dial.URL, more func(*initiator.Options)) (*initiator.Connection, error) {
	return logIn(ctx, a, u, more, initiator.Connect)
}

// logIn finds the target, and opens it.
func logIn[S any](ctx context.Context, a *app, u *dial.URL, more func(*initiator.Options),
	open func(context.Context, initiator.Transport, string, string, initiator.Options) (S, error),
) (none S, err error) {
	o, err := a.options(u)
	if err != nil {
		return none, err
	}
	if more != nil {
		more(&o)
	}
	if u.Target == "" {
		recs, err := a.discover(ctx, *u)
		if err != nil {
			return none, err
		}
		if len(recs) != 1 {
			return none, coded(exitNotFound, fmt.Errorf("%s has %d targets; name one in the URL: %s", u, len(recs), names(recs)))
		}
		u.Target = recs[0].Name
	}
	tr, err := a.transport(*u)
	if err != nil {
		return none, err
	}
	lctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	s, err := open(lctx, tr, u.Address, u.Target, o)
	if err != nil {
		return none, fmt.Errorf("log in to %s: %w", u, err)
	}
	a.noteTransport(u)
	return s, nil
}

// noteTransport says what a session runs on.
func (a *app) noteTransport(u *dial.URL) {
	if a.said {
		return
	}
	a.said = true
	if u.Transport == "tcp" {
		a.note("%s: over TCP", u)
		return
	}
	a.note("%s: over iSER, RDMA provider %s", u, a.provider.Used())
}

func names(recs []initiator.TargetRecord) string {
	var s []string
	for _, r := range recs {
		s = append(s, r.Name)
	}
	return strings.Join(s, ", ")
}

// disk logs in and opens a logical unit, finding the only one if none is named. Close the session.
func (a *app) disk(ctx context.Context, url string) (*initiator.Session, *initiator.Disk, error) {
	u, err := parseURL(url)
	if err != nil {
		return nil, nil, err
	}
	s, err := a.session(ctx, &u)
	if err != nil {
		return nil, nil, err
	}
	d, err := a.unit(ctx, s, &u)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, d, nil
}

func (a *app) unit(ctx context.Context, s *initiator.Session, u *dial.URL) (*initiator.Disk, error) {
	lun, err := a.only(ctx, s, u)
	if err != nil {
		return nil, err
	}
	d, err := s.Disk(ctx, lun)
	if err != nil {
		return nil, fmt.Errorf("%s LUN %v: %w", u, lun, err)
	}
	return d, nil
}

// only is the logical unit of a URL, or else the only one there.
func (a *app) only(ctx context.Context, s *initiator.Session, u *dial.URL) (iscsi.LUN, error) {
	if u.LUN >= 0 {
		return iscsi.LUNFromNumber(u.LUN), nil
	}
	luns, err := a.luns(ctx, s)
	if err != nil {
		return 0, fmt.Errorf("%s: REPORT LUNS: %w", u, err)
	}
	if len(luns) != 1 {
		return 0, coded(exitNotFound, fmt.Errorf("%s has %d logical units; name one in the URL: %v", u, len(luns), luns))
	}
	return luns[0], nil
}

// luns lists the units that are disks: stgt's LUN 0 is a controller.
func (a *app) luns(ctx context.Context, s *initiator.Session) ([]iscsi.LUN, error) {
	all, err := s.LUNs(ctx)
	if err != nil {
		return nil, err
	}
	var disks []iscsi.LUN
	for _, n := range all {
		inq, err := s.Inquiry(ctx, n, false, 0)
		if err != nil {
			return nil, err
		}
		if len(inq) > 0 && inq[0] == 0 {
			disks = append(disks, n)
		}
	}
	return disks, nil
}
