package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// applyLimit is how long a change may wait for stores and sessions before it is taken back.
const applyLimit = 15 * time.Second

// A manager owns the running configuration. Every change, whoever wants it, goes the same way: a copy of what runs is
// edited, checked whole, planned, and applied; then it is what runs. One at a time.
type manager struct {
	log  logrus.FieldLogger
	load func() (*conf.Config, error) // reads the file, as at the start
	file *configFile                  // nil: there is none

	busy    sync.Mutex   // held while a change is made
	s       *service     // set once, by start
	running *conf.Config // what runs; guarded by busy

	mu    sync.Mutex // guards what those who look see
	state admin.Config
	told  string // the status line that systemd has
	saved []byte // what the file says, as Marshal writes it
}

// newManager manages a service that has become c.
func newManager(s *service, c *conf.Config, log logrus.FieldLogger, file *configFile, load func() (*conf.Config, error)) *manager {
	m := &manager{log: log, load: load, file: file, s: s, running: c, saved: c.Marshal()}
	m.state.Changed = s.since
	if file != nil {
		m.state.File = file.path
	}
	m.note("")
	return m
}

// note publishes how the running configuration stands.
func (m *manager) note(trouble string) {
	unsaved := !bytes.Equal(m.running.Marshal(), m.saved)
	warnings := append([]string{}, m.running.Review()...)
	m.mu.Lock()
	m.state.Unsaved, m.state.Warnings, m.state.Trouble = unsaved, warnings, trouble
	line := m.statusLine()
	told := m.told == line
	m.told = line
	m.mu.Unlock()
	if !told {
		m.s.notify("STATUS=" + line)
	}
}

// statusLine is what systemctl status shows.
func (m *manager) statusLine() string {
	s := fmt.Sprintf("serving %d targets", len(m.running.Targets))
	if m.state.Unsaved {
		s += ", configuration not saved"
	}
	return s
}

// snapshot is what there is now.
func (m *manager) snapshot() admin.Snapshot {
	snap := m.s.snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	snap.Config = m.state
	snap.Config.Warnings = slices.Clone(m.state.Warnings)
	return snap
}

// An edit changes a copy of the running configuration.
type edit func(*conf.Config) error

// change makes an edit take effect. With asked, sessions lose what they use only if options say force: it is one single
// thing that somebody has asked for, who may not know. A whole configuration says it all.
func (m *manager) change(ctx context.Context, o options, asked bool, e edit) (admin.Result, error) {
	m.busy.Lock()
	defer m.busy.Unlock()
	next := m.running.Clone()
	if err := e(next); err != nil {
		return admin.Result{}, err
	}
	if err := next.Check(); err != nil {
		return admin.Result{}, err
	}
	changes, err := plan(m.running, next)
	if err != nil {
		return admin.Result{}, err
	}
	r := admin.Result{Steps: m.s.steps(changes)}
	if err := m.s.check(changes, o); err != nil {
		return r, err
	}
	if asked && !o.force && !o.dryRun {
		if err := inUse(r.Steps); err != nil {
			return r, err
		}
	}
	if o.dryRun {
		r.Unsaved = m.isUnsaved()
		return r, nil
	}
	if err := m.become(ctx, next, changes, o); err != nil {
		return r, err
	}
	r.Applied = len(changes) > 0
	if o.save {
		if err := m.write(o.force); err != nil {
			return r, fmt.Errorf("the change is in force, and not saved: %w", err)
		}
		r.Saved = true
	}
	r.Unsaved = m.isUnsaved()
	return r, nil
}

// become applies changes.
func (m *manager) become(ctx context.Context, next *conf.Config, changes []change, o options) error {
	ctx, cancel := context.WithTimeout(ctx, applyLimit)
	defer cancel()
	err := m.s.apply(ctx, changes, o)
	var broken *brokenError
	switch {
	case errors.As(err, &broken):
		m.running = m.s.actual(m.running)
		m.note(err.Error())
		return err
	case err != nil:
		return err // everything is as it was
	}
	m.running = next
	m.mu.Lock()
	if len(changes) > 0 {
		m.state.Changed = time.Now()
	}
	m.mu.Unlock()
	m.note("")
	for _, c := range changes {
		m.log.WithField("event", "config").Infof("configuration: %v", c)
	}
	m.s.warnShared()
	return nil
}

func (m *manager) isUnsaved() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Unsaved
}

// reload makes the file take effect, as systemctl reload wants it.
func (m *manager) reload(ctx context.Context, o options) (admin.Result, error) {
	if m.file == nil {
		return admin.Result{}, errNoFile
	}
	m.s.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonic()))
	defer m.s.notify(daemon.SdNotifyReady)
	c, err := m.load()
	if err != nil {
		return admin.Result{}, err
	}
	for _, w := range c.Warnings {
		m.log.Warn(w)
	}
	r, err := m.change(ctx, o, false, func(n *conf.Config) error { *n = *c; return nil })
	if err != nil || o.dryRun {
		return r, err
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	if err := m.file.remember(); err != nil {
		return r, err
	}
	m.setSaved(c.Marshal())
	r.Unsaved = m.isUnsaved()
	return r, nil
}

func (m *manager) setSaved(b []byte) {
	m.mu.Lock()
	m.saved = b
	trouble := m.state.Trouble
	m.mu.Unlock()
	m.note(trouble)
}

// save writes the running configuration to the file.
func (m *manager) save(force bool) error {
	m.busy.Lock()
	defer m.busy.Unlock()
	return m.write(force)
}

func (m *manager) write(force bool) error {
	if m.file == nil {
		return errNoFile
	}
	b := m.running.Marshal()
	if err := m.file.save(b, force); err != nil {
		return err
	}
	m.log.WithField("event", "config").Infof("configuration saved in %s", m.file.path)
	m.setSaved(b)
	return nil
}

var errNoFile = errors.New("iserd was started without --config, so there is no file")

// monotonic is the clock that systemd compares RELOADING by, in microseconds (sd_notify(3)).
func monotonic() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano() / int64(time.Microsecond)
}

// steps are changes in words, with the sessions that each concerns.
func (s *service) steps(changes []change) []admin.Step {
	list := []admin.Step{}
	names := map[uint16]string{}
	for _, i := range s.server.Sessions() {
		names[i.TSIH] = fmt.Sprintf("0x%04x %s (%s)", i.TSIH, i.Initiator, i.Remote)
	}
	for _, c := range changes {
		if c.op == opAccept {
			continue // part of listening, to a person
		}
		step := admin.Step{Action: c.String(), Sessions: []string{}}
		l := s.losses(c)
		slices.Sort(l.sessions)
		for _, id := range slices.Compact(l.sessions) {
			step.Sessions = append(step.Sessions, cmp.Or(names[id], fmt.Sprintf("0x%04x", id)))
		}
		step.Closes = l.closes && len(step.Sessions) > 0
		list = append(list, step)
	}
	return list
}

// An inUseError names those who would lose what they use.
type inUseError struct{ step admin.Step }

// someSessions is how many sessions an error names.
const someSessions = 4

func (e *inUseError) Error() string {
	list := e.step.Sessions
	more := ""
	if n := len(list) - someSessions; n > 0 {
		list, more = list[:someSessions], fmt.Sprintf(" and %d more", n)
	}
	what := "would lose a disk"
	if e.step.Closes {
		what = "would be closed"
	}
	return fmt.Sprintf("%s: in use; %s: %s%s", e.step.Action, what, strings.Join(list, ", "), more)
}

func inUse(steps []admin.Step) error {
	for _, st := range steps {
		if len(st.Sessions) > 0 {
			return &inUseError{st}
		}
	}
	return nil
}

// actual is what really runs, in the terms of a configuration: c with the stores, targets and portals that there are.
func (s *service) actual(c *conf.Config) *conf.Config {
	n := c.Clone()
	n.Portals, n.Backstores, n.Targets = nil, nil, nil
	for _, t := range s.targetList() {
		n.Targets = append(n.Targets, t.conf)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.portals {
		n.Portals = append(n.Portals, p.conf)
	}
	for _, st := range s.order {
		if s.stores[st.conf.Name] == st {
			n.Backstores = append(n.Backstores, st.conf)
		}
	}
	n.Discovery, n.ISNS = s.discovery, s.isns
	return n
}

// target finds a target of a configuration.
func targetIn(c *conf.Config, name string) (*conf.Target, error) {
	n, err := iscsi.ParseName(name)
	if err != nil {
		return nil, &admin.Error{Message: err.Error(), What: "target " + name, Todo: "give a name as iqn.2026-01.example:disk1", Code: admin.CodeUsage}
	}
	for i := range c.Targets {
		if c.Targets[i].Name == n {
			return &c.Targets[i], nil
		}
	}
	return nil, notFound("target "+name, "iser target list shows those that there are")
}

func notFound(what, todo string) error {
	return &admin.Error{Message: "there is none", What: what, Todo: todo, Code: admin.CodeNotFound}
}
