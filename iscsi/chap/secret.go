package chap

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
)

// Bounds of a secret and of a name, in bytes.
const (
	// MinSecret is 96 bits: shorter ones are only for connections that IPsec encrypts (RFC 7143, 9.2.1).
	MinSecret = 12
	// MaxSecret is what other ends take: a text value's 255 bytes (RFC 7143, 6.1).
	MaxSecret = 255
	// MaxName is the longest CHAP_N: a text value's 255 bytes.
	MaxName = 255
)

// A Secret is a CHAP secret. Whatever prints it prints "(secret)". The zero Secret is none.
type Secret struct{ text string }

// NewSecret makes a secret of its bytes, which are taken as they are: no notation is looked for in them,
// as open-iscsi and libiscsi do. An error does not show them.
func NewSecret(text string) (Secret, error) {
	switch n := len(text); {
	case n < MinSecret:
		return Secret{}, fmt.Errorf("secret of %d bytes; at least %d (96 bits) are needed, taken at random", n, MinSecret)
	case n > MaxSecret:
		return Secret{}, fmt.Errorf("secret of %d bytes; at most %d", n, MaxSecret)
	}
	return Secret{text}, nil
}

const shown = "(secret)"

// Format implements fmt.Formatter: every verb shows the same.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(shown)) }

// MarshalText implements encoding.TextMarshaler, for JSON and loggers.
func (s Secret) MarshalText() ([]byte, error) { return []byte(shown), nil }

// Reveal is the secret's text, for a file of secrets that is written. It must get nowhere else.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// Equal reports whether two secrets are the same, in constant time.
func (s Secret) Equal(o Secret) bool { return equal(s.text, o.text) }

// equal compares in a time that tells nothing, not even the length.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Credentials are what the two ends of a login know of each other. User and Secret are the initiator's:
// what it proves, and what the target checks.
type Credentials struct {
	User   string
	Secret Secret
	// MutualUser and MutualSecret are what the target proves to an initiator that asks; a zero
	// MutualSecret means that it cannot.
	MutualUser   string
	MutualSecret Secret
	// Algorithms are those allowed, in the order of preference; empty means all.
	Algorithms []Algorithm
}

var errSame = errors.New("the same secret for both directions: a peer could answer with what it has been asked (RFC 7143, 9.2.1)")

// Check finds what credentials cannot be.
func (c *Credentials) Check() error {
	switch {
	case c.User == "" || len(c.User) > MaxName:
		return fmt.Errorf("CHAP user name of %d bytes; 1 to %d are needed", len(c.User), MaxName)
	case c.Secret.IsZero():
		return fmt.Errorf("CHAP user %.64q has no secret", c.User)
	case c.MutualSecret.IsZero() && c.MutualUser != "":
		return fmt.Errorf("mutual CHAP user %.64q has no secret", c.MutualUser)
	case c.MutualSecret.IsZero():
		return nil
	case c.MutualUser == "" || len(c.MutualUser) > MaxName:
		return fmt.Errorf("mutual CHAP user name of %d bytes; 1 to %d are needed", len(c.MutualUser), MaxName)
	case c.MutualSecret.Equal(c.Secret):
		return errSame
	}
	return nil
}

// Mutual reports whether the target can prove itself.
func (c *Credentials) Mutual() bool { return !c.MutualSecret.IsZero() }

// Proves reports whether an initiator's name and response are right. The work is the same whether
// the name is known or not.
func (c *Credentials) Proves(a Algorithm, name string, response []byte, id byte, challenge []byte) bool {
	return proves(a, c.User, c.Secret, name, response, id, challenge)
}

// MutualProves is Proves for the target's name and response.
func (c *Credentials) MutualProves(a Algorithm, name string, response []byte, id byte, challenge []byte) bool {
	return proves(a, c.MutualUser, c.MutualSecret, name, response, id, challenge)
}

func proves(a Algorithm, user string, s Secret, name string, response []byte, id byte, challenge []byte) bool {
	right := a.Verify(response, id, s, challenge)
	return equal(user, name) && right && !s.IsZero()
}
