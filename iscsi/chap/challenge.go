package chap

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
)

// Bounds of a challenge, in bytes.
const (
	// nonceSize is the random part of our challenges, and markSize the part by which we know them.
	nonceSize = 16
	markSize  = 16
	// MaxChallenge is the longest challenge that is taken (RFC 7143, 12.1.3).
	MaxChallenge = 1024
)

// A Challenger makes challenges, no two the same, and knows its own again: a peer that sends one back, on
// whatever connection, wants us to do its work (RFC 7143, 9.2.1). It remembers none of them: each
// carries a mark, which is a hash of the rest under a key that only the Challenger has.
//
// Its methods may be called from any goroutine.
type Challenger struct{ key [32]byte }

// NewChallenger makes a Challenger with a random key.
func NewChallenger() *Challenger {
	c := new(Challenger)
	_, _ = rand.Read(c.key[:]) // never fails (crypto/rand)
	return c
}

// Challenge makes a challenge and its identifier, of random bytes from the system.
func (c *Challenger) Challenge() (id byte, challenge []byte) {
	b := make([]byte, 1+nonceSize)
	_, _ = rand.Read(b)
	return b[0], append(b[1:], c.mark(b[1:])...)
}

// Made reports whether a challenge is one of ours.
func (c *Challenger) Made(challenge []byte) bool {
	if len(challenge) != nonceSize+markSize {
		return false
	}
	return hmac.Equal(challenge[nonceSize:], c.mark(challenge[:nonceSize]))
}

func (c *Challenger) mark(nonce []byte) []byte {
	h := hmac.New(sha256.New, c.key[:])
	h.Write(nonce)
	return h.Sum(nil)[:markSize]
}
