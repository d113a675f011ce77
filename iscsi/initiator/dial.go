package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

const (
	maxRedirects    = 4 // SE-15
	maxLoginRetries = 3 // after statuses of class 3 (LG-09)
	loginRetryDelay = 250 * time.Millisecond
)

// Open logs in to target at address.
//
// A redirection is followed, at most maxRedirects times and never back to where we have been; a target that cannot just now (status class 3) is
// asked again a few times within the login timeout. A refusal is a *iscsi.LoginError.
func Open(ctx context.Context, tr Transport, address, target string, o Options) (*Session, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	name, err := iscsi.ParseName(target)
	if err != nil {
		return nil, err
	}
	link, l, err := connect(ctx, tr, address, string(name), &o)
	if err != nil {
		return nil, err
	}
	s, err := start(link.dm, l, &o, string(name))
	if err != nil {
		_ = link.dm.Close()
		return nil, err
	}
	return s, nil
}

// connect dials and logs in, until it is in full-feature phase. target is empty for discovery.
func connect(ctx context.Context, tr Transport, address, target string, o *Options) (*link, *login, error) {
	ctx, stop := context.WithTimeoutCause(ctx, o.LoginTimeout, late(o.LoginTimeout))
	defer stop()
	tries := 0
	been := []string{address}
	for {
		k, l, err := attempt(ctx, tr, address, target, o)
		if err == nil {
			return k, l, nil
		}
		err = fmt.Errorf("log in at %s over %s: %w", address, tr.Name(), err)
		var refused *iscsi.LoginError
		switch {
		case !errors.As(err, &refused):
			return nil, nil, err
		case refused.Status.Redirect():
			if len(been) > maxRedirects {
				return nil, nil, fmt.Errorf("more than %d redirections: %w", maxRedirects, err)
			}
			next, bad := redirection(refused.Address, err)
			if bad != nil {
				return nil, nil, bad
			}
			if slices.Contains(been, next) {
				return nil, nil, fmt.Errorf("redirected in a circle, back to %s: %w", next, err)
			}
			address, been = next, append(been, next)
			o.Log.WithFields(logrus.Fields{"target": target}).Infof("redirected to %s", address)
		case refused.Status.Temporary() && tries < maxLoginRetries:
			tries++
			if !pause(ctx, loginRetryDelay<<tries) {
				return nil, nil, err
			}
		default:
			return nil, nil, err
		}
	}
}

// late is the cause of a context that ends after d.
func late(d time.Duration) error {
	return fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded)
}

// attempt is one connection with one login.
func attempt(ctx context.Context, tr Transport, address, target string, o *Options) (*link, *login, error) {
	dm, err := tr.Dial(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	k := &link{dm: dm}
	l := newLogin(o, dm.Traits(), target)
	if err := k.login(ctx, l); err != nil {
		_ = dm.Close()
		return nil, nil, err
	}
	return k, l, nil
}

// redirection makes host:port of a TargetAddress: "host[:port][,portal group]", IPv6 in brackets
// (RFC 7143, 13.8).
func redirection(address string, cause error) (string, error) {
	host, _, _ := strings.Cut(address, ",")
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	switch {
	case bare == "" || strings.ContainsAny(host, " \t\r\n\x00/@"):
		return "", fmt.Errorf("redirected to the address %.64q: %w", address, cause)
	case !strings.Contains(bare, ":") || strings.HasSuffix(host, "]"):
		return net.JoinHostPort(bare, defaultPort), nil
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		return "", fmt.Errorf("redirected to the address %.64q: %w", address, cause)
	}
	return host, nil
}

// pause waits for d, unless ctx ends or would end before it is over.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A link is a connection on which one PDU is awaited at a time: in login and discovery.
type link struct {
	dm     iscsi.InitiatorDatamover
	events [1]iscsi.Event // one at a time: the views of an event die with the next Flush
	bhs    [iscsi.BHSSize]byte
}

// next waits for a PDU. Its views are valid until the next Flush.
func (k *link) next(ctx context.Context) (*iscsi.Event, error) {
	stop := context.AfterFunc(ctx, k.dm.Wake)
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		deadline, _ := ctx.Deadline()
		n, err := k.dm.Wait(k.events[:], deadline)
		switch {
		case n > 0 && k.events[0].Kind == iscsi.EventPDU:
			return &k.events[0], nil
		case err != nil:
			return nil, err
		}
	}
}

// login drives l to its end.
func (k *link) login(ctx context.Context, l *login) error {
	prepared := false
	for {
		if l.asksFullFeature() && !prepared {
			prepared = true
			p := l.neg.Proposed()
			if err := k.dm.Prepare(&p); err != nil {
				return fmt.Errorf("make room for full-feature phase: %w", err)
			}
		}
		text := l.request(&k.bhs)
		k.dm.Send(&k.bhs, text)
		if err := k.dm.Flush(); err != nil {
			return err
		}
		ev, err := k.next(ctx)
		if err != nil {
			return err
		}
		if done, err := l.response(ev.BHS, ev.Data); done || err != nil {
			return err
		}
	}
}
