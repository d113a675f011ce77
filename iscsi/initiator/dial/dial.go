package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// Dial logs in to the target of a URL, which names a target, and opens the logical unit of it, 0 if none is named.
// Close the disk. Who opens several at a time needs one Dialer: our RoCE has a UDP port of the host for itself.
//
// Errors are those of ParseURL, initiator.Connect and its Disk. A session that is lost is the end of the disk: for one
// that reconnects, use a Dialer with Options.ReconnectTimeout.
func Dial(ctx context.Context, url string) (*Disk, error) {
	d := &Dialer{}
	disk, err := d.Dial(ctx, url)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	disk.dialer = d
	return disk, nil
}

// A Dialer opens disks, with what they have in common. The zero value will do. Its methods may be called from many
// goroutines; the exported fields are not changed after the first call.
type Dialer struct {
	// Options are how sessions are opened. A user and secret in the URL go before the
	// credentials here; a user without secret takes the secret from here.
	Options initiator.Options
	// Source is the local address for our RoCE; the zero value takes that of the route to the target.
	Source netip.Addr
	// ISER sets up connections over iSER.
	ISER iser.InitiatorConfig

	mu        sync.Mutex
	closed    bool
	providers map[string]*provider.Provider // by URL.RDMA
}

// A Disk is a logical unit with a connection, or paths, of its own.
type Disk struct {
	*initiator.Disk
	connection *initiator.Connection // nil: it has paths
	paths      *initiator.Paths
	dialer     *Dialer // closed with the disk; nil: it is the caller's
}

// Connection is the disk's connection, for commands of one's own, task management and pings; nil after DialPaths.
func (d *Disk) Connection() *initiator.Connection { return d.connection }

// Close logs out.
func (d *Disk) Close() error {
	var err error
	if d.paths != nil {
		err = d.paths.Close()
	} else {
		err = d.connection.Close()
	}
	if d.dialer != nil {
		err = errors.Join(err, d.dialer.Close())
	}
	return err
}

// Dial is as the function Dial.
func (d *Dialer) Dial(ctx context.Context, url string) (*Disk, error) {
	u, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	if u.Target == "" {
		return nil, fmt.Errorf("dial %s: the URL names no target", u)
	}
	tr, o, err := d.prepare(&u)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", u, err)
	}
	c, err := initiator.Connect(ctx, tr, u.Address, u.Target, o)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", u, err)
	}
	disk, err := c.Disk(ctx, iscsi.LUNFromNumber(max(u.LUN, 0)))
	if err != nil {
		_ = c.Close() // what is wrong with the disk is what the caller has to know
		return nil, fmt.Errorf("dial %s: %w", u, err)
	}
	return &Disk{Disk: disk, connection: c}, nil
}

// DialPaths opens one logical unit by several URLs, which are paths to it: see initiator.Paths. All of them name the same
// LUN. The credentials, if there are any, are those of Options.CHAP or of the first URL.
func (d *Dialer) DialPaths(ctx context.Context, urls ...string) (*Disk, error) {
	var paths []initiator.Path
	var o initiator.Options
	lun := 0
	for i, url := range urls {
		u, err := ParseURL(url)
		if err != nil {
			return nil, err
		}
		if u.Target == "" {
			return nil, fmt.Errorf("dial %s: the URL names no target", u)
		}
		tr, with, err := d.prepare(&u)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", u, err)
		}
		if i == 0 {
			o, lun = with, max(u.LUN, 0)
		} else if max(u.LUN, 0) != lun {
			return nil, fmt.Errorf("dial %s: the other paths have LUN %d", u, lun)
		}
		paths = append(paths, initiator.Path{Transport: tr, Address: u.Address, Target: u.Target})
	}
	m, err := initiator.ConnectPaths(ctx, o, paths...)
	if err != nil {
		return nil, fmt.Errorf("dial %d paths: %w", len(paths), err)
	}
	disk, err := m.Disk(ctx, iscsi.LUNFromNumber(lun))
	if err != nil {
		_ = m.Close() // what is wrong with the disk is what the caller has to know
		return nil, fmt.Errorf("dial %d paths: %w", len(paths), err)
	}
	return &Disk{Disk: disk, paths: m}, nil
}

// Discover asks the portal of a URL for its targets.
func (d *Dialer) Discover(ctx context.Context, url string) ([]initiator.TargetRecord, error) {
	u, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	tr, o, err := d.prepare(&u)
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", u, err)
	}
	return initiator.Discover(ctx, tr, u.Address, o)
}

// Close ends connections over RDMA that are still open and frees what they share. The Dialer opens nothing any more.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, p := range d.providers {
		errs = append(errs, p.Close())
	}
	d.providers = nil
	return errors.Join(errs...)
}

// prepare makes the transport and the options for a URL.
func (d *Dialer) prepare(u *URL) (initiator.Transport, initiator.Options, error) {
	o := d.Options
	var err error
	if o.CHAP, err = credentials(u, o.CHAP); err != nil {
		return nil, o, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, o, fmt.Errorf("dialer: %w", net.ErrClosed)
	}
	if u.Transport == "tcp" {
		return &tcp.Dialer{}, o, nil
	}
	p := d.providers[u.RDMA]
	if p == nil {
		if p, err = provider.Open(u.RDMA, roce.Options{Addr: d.Source}); err != nil {
			return nil, o, err
		}
		if d.providers == nil {
			d.providers = map[string]*provider.Provider{}
		}
		d.providers[u.RDMA] = p
	}
	return &iser.Dialer{Provider: p, Config: d.ISER}, o, nil
}

// credentials are those of a URL or, where it has no secret, of the options.
func credentials(u *URL, known *chap.Credentials) (*chap.Credentials, error) {
	switch {
	case u.User == "" && u.MutualUser != "":
		return nil, errors.New("only a target to which we prove who we are proves itself: write USER@ before the host")
	case u.User == "", u.Secret == "" && known != nil && known.User == u.User:
		return known, nil
	}
	c := &chap.Credentials{User: u.User, MutualUser: u.MutualUser}
	var err error
	if c.Secret, err = chap.NewSecret(u.Secret); err != nil {
		return nil, fmt.Errorf("CHAP user %q: %w", u.User, err)
	}
	if u.MutualUser != "" {
		if c.MutualSecret, err = chap.NewSecret(u.MutualSecret); err != nil {
			return nil, fmt.Errorf("mutual CHAP user %q: %w", u.MutualUser, err)
		}
	}
	return c, nil
}
