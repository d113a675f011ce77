package dial

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma/provider"
)

const (
	defaultPort = "3260" // RFC 7143, 4.2.7.1
	maxLUN      = 16383  // of a URL: flat space addressing (SAM-5, 4.7.5.4)
	userKey     = "target_user"
	passwordKey = "target_password"
)

// A URL names a portal, a target there, or a logical unit of it.
type URL struct {
	Transport string // "iser" or "tcp"
	Address   string // host:port
	Target    string // empty: not named
	LUN       int    // -1: not named
	RDMA      string // provider.Auto, Verbs or RoCE

	// User and Secret are what stands before the host, MutualUser and MutualSecret libiscsi's ?target_user= and
	// ?target_password=; empty: not named.
	User, Secret             string
	MutualUser, MutualSecret string
}

// IsURL reports whether s has a scheme of ours.
func IsURL(s string) bool {
	return strings.HasPrefix(s, "iser://") || strings.HasPrefix(s, "iscsi://")
}

// ParseURL reads
//
//	iser://[USER[%SECRET]@]HOST[:PORT][/IQN[/LUN]][?rdma=auto|verbs|roce][&target_user=NAME&target_password=SECRET]
//
// as libiscsi writes them, or the same with iscsi:// for TCP. It does not use net/url: an IQN has colons, and a user
// name may hold a bare '%'. Errors do not show secrets.
func ParseURL(s string) (URL, error) {
	u := URL{LUN: -1, RDMA: provider.Auto}
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case ok && scheme == "iser":
		u.Transport = "iser"
	case ok && scheme == "iscsi":
		u.Transport = "tcp"
	default:
		return u, fmt.Errorf("URL %q: want iser://HOST or iscsi://HOST", Redact(s))
	}
	if err := u.parse(rest); err != nil {
		return u, fmt.Errorf("URL %q: %w", Redact(s), err)
	}
	return u, nil
}

// parse reads what is behind the scheme.
func (u *URL) parse(s string) (err error) {
	if i := userEnd(s); i >= 0 {
		// As libiscsi does: the first % ends the name.
		if u.User, u.Secret, _ = strings.Cut(s[:i], "%"); u.User == "" {
			return errors.New("no user name before @")
		}
		s = s[i+1:]
	}
	s, query, _ := strings.Cut(s, "?")
	host, path, _ := strings.Cut(s, "/")
	if u.Address, err = hostPort(host); err != nil {
		return err
	}
	if err := u.parsePath(path); err != nil {
		return err
	}
	return u.parseQuery(query)
}

// hostPort adds the default port; IPv6 addresses stand in brackets.
func hostPort(s string) (string, error) {
	if s == "" {
		return "", errors.New("no host")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
		if strings.Contains(host, ":") && !strings.HasPrefix(s, "[") {
			return "", fmt.Errorf("IPv6 address %q: write it in brackets", s)
		}
	}
	if host == "" || strings.ContainsAny(host, "[]") {
		return "", fmt.Errorf("host %q", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q: want 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

func (u *URL) parsePath(path string) error {
	iqn, lun, hasLUN := strings.Cut(path, "/")
	if iqn == "" {
		if hasLUN && lun != "" {
			return errors.New("a LUN without a target name")
		}
		return nil
	}
	name, err := iscsi.ParseName(iqn)
	if err != nil {
		return err
	}
	u.Target = string(name)
	if lun = strings.TrimSuffix(lun, "/"); lun != "" {
		n, err := strconv.Atoi(lun)
		if err != nil || n < 0 || n > maxLUN {
			return fmt.Errorf("LUN %q: want 0 to %d", lun, maxLUN)
		}
		u.LUN = n
	}
	return nil
}

func (u *URL) parseQuery(query string) error {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		switch k, v, _ := strings.Cut(part, "="); k {
		case "rdma":
			if v != provider.Auto && v != provider.Verbs && v != provider.RoCE {
				return fmt.Errorf("rdma=%s: want auto, verbs or roce", v)
			}
			u.RDMA = v
		case userKey:
			u.MutualUser = v
		case passwordKey:
			u.MutualSecret = v
		default:
			return fmt.Errorf("option %q: want rdma, %s or %s", k, userKey, passwordKey)
		}
	}
	if u.MutualSecret != "" && u.MutualUser == "" {
		return fmt.Errorf("%s without %s", passwordKey, userKey)
	}
	return nil
}

// String is the URL again, as far as it is known, without secrets and options.
func (u URL) String() string {
	scheme := u.Transport
	if scheme == "tcp" {
		scheme = "iscsi"
	}
	s := scheme + "://"
	if u.User != "" {
		s += u.User + "@"
	}
	s += u.Address
	if u.Target != "" {
		s += "/" + u.Target
		if u.LUN >= 0 {
			s += "/" + strconv.Itoa(u.LUN)
		}
	}
	return s
}

// Redact is a URL, or what was meant to be one, without its secrets.
func Redact(s string) string {
	if i, j := strings.Index(s, "://"), userEnd(s); i >= 0 && j > i {
		user, _, secret := strings.Cut(s[i+3:j], "%")
		if secret {
			user += "%..."
		}
		s = s[:i+3] + user + s[j:]
	}
	if i := strings.Index(s, passwordKey+"="); i >= 0 {
		rest := ""
		if j := strings.IndexByte(s[i:], '&'); j >= 0 {
			rest = s[i+j:]
		}
		s = s[:i] + passwordKey + "=..." + rest
	}
	return s
}

// userEnd is where the user part of a URL ends, -1 without one: at the last @, since a secret may hold any character,
// but before the target's name and secret, which may as well.
func userEnd(s string) int {
	for _, key := range []string{userKey, passwordKey} {
		s, _, _ = strings.Cut(s, key+"=")
	}
	return strings.LastIndexByte(s, '@')
}
