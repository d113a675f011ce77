package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/cmd/statedir"
)

// verifyStateName is the state's name in its folder.
const verifyStateName = "verify"

// A verifyState is the folder of --state, and what was found there. A nil one keeps nothing.
type verifyState struct {
	dir   *statedir.Dir
	found *verify.State
}

// openVerifyState opens the folder, making it if need be; nobody else may use it until it is closed.
func openVerifyState(path string) (*verifyState, error) {
	d, err := statedir.Open(path)
	if err != nil {
		return nil, err
	}
	s := &verifyState{dir: d}
	b, err := d.Load(verifyStateName)
	if err == nil && b != nil {
		s.found = new(verify.State)
		err = json.Unmarshal(b, s.found)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return s, nil
}

// attach has a runner go on where the state is, and keep it.
func (s *verifyState) attach(r *verify.Runner) error {
	if s == nil {
		return nil
	}
	if s.found != nil {
		if err := r.Resume(*s.found); err != nil {
			return fmt.Errorf("--state: %w", err)
		}
	}
	r.Keep(func(st verify.State) error {
		b, err := json.Marshal(st)
		if err != nil {
			return err
		}
		return s.dir.Save(verifyStateName, b)
	})
	return nil
}

// ended removes the state if there was no error: there is nothing to go on with.
func (s *verifyState) ended(err error) error {
	if s == nil || err != nil {
		return err
	}
	return s.dir.Save(verifyStateName, nil)
}
