package initiator

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/sirupsen/logrus"
)

// A Transport opens connections of one kind, for example iscsi/tcp's or iser's.
type Transport interface {
	// Name is the URL scheme's transport: "tcp" or "iser".
	Name() string
	// Dial connects to host:port, ready for the login phase.
	Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error)
}

// Options are how a session is opened. The zero value will do.
type Options struct {
	// InitiatorName is ours; empty makes one from the host name.
	InitiatorName string
	// ISID; zero makes a random one (RFC 7143, 11.12.5, type 10b).
	ISID iscsi.ISID
	// Negotiate is what we offer; nil takes iscsi.DefaultConfig.
	Negotiate *iscsi.Config
	// LoginTimeout bounds connecting and logging in; 0 means 15 s.
	LoginTimeout time.Duration
	// CommandTimeout is when a command without answer is aborted; 0 means 30 s.
	CommandTimeout time.Duration
	// PingInterval is the idle time before a NOP-Out; 0 means 10 s, negative never.
	PingInterval time.Duration
	// QueueDepth bounds commands outstanding, within the target's window; 0 means 64, at most 1024.
	QueueDepth int
	// ReconnectTimeout is how long a Connection tries to open a lost session again; then each call tries once more. 0:
	// it does not. It has no meaning for Open.
	ReconnectTimeout time.Duration
	// Exclusive vouches that only this Connection changes the blocks that it writes, from the write on until it has
	// ended: for example by a persistent reservation, or since no other host uses the unit. Then writes whose session
	// was lost are sent again, see Connection.
	Exclusive bool
	// SetAccess has a Disk of Paths ask the unit, by SET TARGET PORT GROUPS, to make a path optimized when none of those
	// that are there gives access, if the unit takes such requests (explicit ALUA). It changes what other hosts see.
	SetAccess bool
	// CHAP is what we prove to targets that ask, for sessions and discovery. With a MutualSecret the
	// target must prove itself too: one that does not is left, with an error that wraps ErrAuth. nil: nothing.
	CHAP *chap.Credentials
	// Attention, if not nil, is told of each unit attention that a Disk's command has met, before the command is sent
	// again: what has changed (SAM-5, 5.14). errors.Is finds ErrCapacityChanged, ErrLUNsChanged and ErrAccessChanged. It
	// is called by the goroutine of that command, which waits for it, by several at a time. Session.Do returns unit
	// attentions to its caller instead.
	Attention func(lun iscsi.LUN, what *StatusError)
	// Log gets one line an event; nil discards.
	Log logrus.FieldLogger

	challenger *chap.Challenger // of mutual CHAP
}

const defaultPort = "3260" // RFC 7143, 4.2.7.1

// withDefaults fills in what is zero.
func (o Options) withDefaults() (Options, error) {
	if o.InitiatorName == "" {
		o.InitiatorName = defaultName()
	}
	name, err := iscsi.ParseName(o.InitiatorName)
	if err != nil {
		return o, fmt.Errorf("initiator name: %w", err)
	}
	o.InitiatorName = string(name)
	if o.ISID == (iscsi.ISID{}) {
		_, _ = rand.Read(o.ISID[:]) // never fails (crypto/rand)
		o.ISID[0] = o.ISID[0]&0x3f | 0x80
	}
	if o.Negotiate == nil {
		c := iscsi.DefaultConfig()
		o.Negotiate = &c
	}
	o.LoginTimeout = orElse(o.LoginTimeout, 15*time.Second)
	o.CommandTimeout = orElse(o.CommandTimeout, 30*time.Second)
	o.PingInterval = orElse(o.PingInterval, 10*time.Second)
	o.QueueDepth = orElse(o.QueueDepth, 64)
	if o.QueueDepth < 0 || o.QueueDepth > maxQueueDepth {
		return o, fmt.Errorf("queue depth %d, at most %d", o.QueueDepth, maxQueueDepth)
	}
	if o.ReconnectTimeout < 0 {
		return o, fmt.Errorf("reconnect timeout of %v", o.ReconnectTimeout)
	}
	if o.LoginTimeout < 0 || o.CommandTimeout < 0 {
		return o, fmt.Errorf("timeouts of %v and %v", o.LoginTimeout, o.CommandTimeout)
	}
	if o.CHAP != nil {
		if err := o.CHAP.Check(); err != nil {
			return o, err
		}
		o.challenger = chap.NewChallenger()
	}
	if o.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		l.SetLevel(logrus.PanicLevel)
		o.Log = l
	}
	return o, nil
}

func orElse[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// defaultName makes a name of the host's.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(host))
	return "iqn.2026-01.io.github.goiser:" + host[:min(len(host), 128)]
}
