package main

import (
	"github.com/goiser/goiser/cmd/statedir"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// openState opens the state directory of a configuration that has one.
func (s *service) openState(path string) error {
	if path == "" {
		return nil
	}
	dir, err := statedir.Open(path)
	if err != nil {
		return err
	}
	s.state = dir
	return nil
}

// keeper is what devices keep reservations with; nil without a state directory.
func (s *service) keeper() scsi.StateKeeper {
	if s.state == nil {
		return nil
	}
	return stateKeeper{s.state, s.log}
}

// A stateKeeper tells the operator what initiators only learn as INTERNAL TARGET FAILURE.
type stateKeeper struct {
	*statedir.Dir
	log logrus.FieldLogger
}

// Save is Dir's.
func (k stateKeeper) Save(name string, state []byte) error {
	err := k.Dir.Save(name, state)
	if err != nil {
		k.log.WithField("err", err).Error("persistent reservations not saved; the initiator's request was refused")
	}
	return err
}
