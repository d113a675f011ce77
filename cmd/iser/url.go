package main

import (
	"github.com/goiser/goiser/iscsi/initiator/dial"
)

// A location is a parsed URL (see urlHelp).
type location struct {
	transport string // "iser" or "tcp"
	address   string // host:port
	target    string // empty: not named
	lun       int    // -1: not named
	provider  string // of ?rdma=
	// user and secret are what stands before the host, mutualUser and mutualSecret libiscsi's ?target_user= and
	// ?target_password=; empty: not named.
	user, secret             string
	mutualUser, mutualSecret string
}

// isURL reports whether an argument is a URL, not a file.
func isURL(s string) bool { return dial.IsURL(s) }

// parseURL reads a URL; one that is wrong is a mistake of usage.
func parseURL(s string) (location, error) {
	u, err := dial.ParseURL(s)
	if err != nil {
		return location{}, usage(err)
	}
	return location{
		transport: u.Transport, address: u.Address, target: u.Target, lun: u.LUN, provider: u.RDMA,
		user: u.User, secret: u.Secret, mutualUser: u.MutualUser, mutualSecret: u.MutualSecret,
	}, nil
}

// String is the URL again, as far as it is known, without secrets.
func (l location) String() string {
	return dial.URL{Transport: l.transport, Address: l.address, Target: l.target, LUN: l.lun, User: l.user}.String()
}
