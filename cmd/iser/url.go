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
}

const (
	defaultPort = "3260"
	maxLUN      = 16383
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
		return l, usage(fmt.Errorf("URL %q: want iser://HOST or iscsi://HOST", s))
	}
	rest, query, _ := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	if strings.Contains(host, "@") {
		return l, usage(fmt.Errorf("URL %q: user names are not supported yet (no CHAP)", s))
	}
	var err error
	if l.address, err = hostPort(host); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", s, err))
	}
	if err := l.parsePath(path); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", s, err))
	}
	if err := l.parseQuery(query); err != nil {
		return l, usage(fmt.Errorf("URL %q: %w", s, err))
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
		k, v, _ := strings.Cut(part, "=")
		if k != "rdma" {
			return fmt.Errorf("option %q: only rdma= is known", k)
		}
		if v != provider.Auto && v != provider.Verbs && v != provider.RoCE {
			return fmt.Errorf("rdma=%s: want auto, verbs or roce", v)
		}
		l.provider = v
	}
	return nil
}

// String is the URL again, as far as it is known.
func (l location) String() string {
	scheme := l.transport
	if scheme == "tcp" {
		scheme = "iscsi"
	}
	s := scheme + "://" + l.address
	if l.target != "" {
		s += "/" + l.target
		if l.lun >= 0 {
			s += "/" + strconv.Itoa(l.lun)
		}
	}
	return s
}
