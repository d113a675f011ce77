package main

import "github.com/goiser/goiser/iscsi/initiator/dial"

// parseURL reads a URL (see urlHelp); one that is wrong is a mistake of usage.
func parseURL(s string) (dial.URL, error) {
	u, err := dial.ParseURL(s)
	if err != nil {
		return u, usage(err)
	}
	return u, nil
}
