package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/goiser/goiser/cmd/provider"
	"github.com/goiser/goiser/iscsi"
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

const (
	defaultPort = "3260"
	maxLUN      = 16383
	passwordKey = "target_password"
)

func isURL(s string) bool {
	return strings.HasPrefix(s, "iser://") || strings.HasPrefix(s, "iscsi://")
}

// parseURL reads a URL as libiscsi writes them. It does not use net/url: an IQN has colons, and a
// libiscsi user name may hold a bare '%'.
func parseURL(s string) (location, error) {
	l := location{lun: -1, provider: provider.Auto}
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case ok && scheme == "iser":
		l.transport = "iser"
	case ok && scheme == "iscsi":
		l.transport = "tcp"
	default:
		return l, usage(fmt.Errorf("URL %q: want iser://HOST or iscsi://HOST", shownURL(s)))
	}
	var err error
	if i := userEnd(rest); i >= 0 {
		if err = l.parseUser(rest[:i]); err != nil {
			return l, usage(fmt.Errorf("URL %q: %w", shownURL(s), err))
		}
		rest = rest[i+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	if l.address, err = hostPort(host); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", shownURL(s), err))
	}
	if err := l.parsePath(path); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", shownURL(s), err))
	}
	if err := l.parseQuery(query); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", shownURL(s), err))
	}
	return l, nil
}

// hostPort adds the default port; IPv6 addresses stand in brackets.
func hostPort(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("no host")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
		if strings.Contains(host, ":") && !strings.HasPrefix(s, "[") {
			return "", fmt.Errorf("IPv6 address %q: write it in brackets", s)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q: want 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

func (l *location) parsePath(path string) error {
	iqn, lun, hasLUN := strings.Cut(path, "/")
	if iqn == "" {
		if hasLUN && lun != "" {
			return fmt.Errorf("a LUN without a target name")
		}
		return nil
	}
	name, err := iscsi.ParseName(iqn)
	if err != nil {
		return err
	}
	l.target = string(name)
	if lun = strings.TrimSuffix(lun, "/"); lun != "" {
		n, err := strconv.Atoi(lun)
		if err != nil || n < 0 || n > maxLUN {
			return fmt.Errorf("LUN %q: want 0 to %d", lun, maxLUN)
		}
		l.lun = n
	}
	return nil
}

func (l *location) parseQuery(query string) error {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		switch k, v, _ := strings.Cut(part, "="); k {
		case "rdma":
			if v != provider.Auto && v != provider.Verbs && v != provider.RoCE {
				return fmt.Errorf("rdma=%s: want auto, verbs or roce", v)
			}
			l.provider = v
		case "target_user":
			l.mutualUser = v
		case passwordKey:
			l.mutualSecret = v
		default:
			return fmt.Errorf("option %q: want rdma, target_user or %s", k, passwordKey)
		}
	}
	if l.mutualSecret != "" && l.mutualUser == "" {
		return fmt.Errorf("%s without target_user", passwordKey)
	}
	return nil
}

// String is the URL again, as far as it is known, without secrets.
func (l location) String() string {
	scheme := l.transport
	if scheme == "tcp" {
		scheme = "iscsi"
	}
	s := scheme + "://"
	if l.user != "" {
		s += l.user + "@"
	}
	s += l.address
	if l.target != "" {
		s += "/" + l.target
		if l.lun >= 0 {
			s += "/" + strconv.Itoa(l.lun)
		}
	}
	return s
}
