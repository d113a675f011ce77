package chap

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/subtle"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
)

// An Algorithm is a CHAP algorithm by its number in CHAP_A (IANA, "PPP Authentication Algorithms").
type Algorithm uint8

// The algorithms. Some old targets call SHA-1 7: they are reached with MD5 only.
const (
	MD5     Algorithm = 5 // which every iSCSI end has to have (RFC 7143, 12.1.3)
	SHA1    Algorithm = 6
	SHA256  Algorithm = 7
	SHA3256 Algorithm = 8
)

// Algorithms lists all, the strongest first, as they are offered.
func Algorithms() []Algorithm { return []Algorithm{SHA3256, SHA256, SHA1, MD5} }

// String is the algorithm's name, as ParseAlgorithm takes it.
func (a Algorithm) String() string {
	switch a {
	case MD5:
		return "md5"
	case SHA1:
		return "sha1"
	case SHA256:
		return "sha256"
	case SHA3256:
		return "sha3-256"
	}
	return "algorithm " + strconv.Itoa(int(a))
}

// ParseAlgorithm reads a name: md5, sha1, sha256 or sha3-256.
func ParseAlgorithm(s string) (Algorithm, error) {
	for _, a := range Algorithms() {
		if a.String() == s {
			return a, nil
		}
	}
	return 0, fmt.Errorf("CHAP algorithm %.32q is not one of sha3-256, sha256, sha1, md5", s)
}

// new panics for an algorithm that is none: ParseAlgorithm and Choose give no such.
func (a Algorithm) new() hash.Hash {
	switch a {
	case MD5:
		return md5.New()
	case SHA1:
		return sha1.New()
	case SHA256:
		return sha256.New()
	case SHA3256:
		return sha3.New256()
	}
	panic("chap: " + a.String())
}

// Response is what proves that s is known (RFC 1994, 4.1): the hash of identifier, secret and challenge.
func (a Algorithm) Response(id byte, s Secret, challenge []byte) []byte {
	h := a.new()
	h.Write([]byte{id})
	h.Write([]byte(s.text))
	h.Write(challenge)
	return h.Sum(nil)
}

// Verify reports whether response is the right one. How long it takes tells nothing but the response's
// length.
func (a Algorithm) Verify(response []byte, id byte, s Secret, challenge []byte) bool {
	return subtle.ConstantTimeCompare(response, a.Response(id, s, challenge)) == 1
}

// Offer is the value of CHAP_A for a list of algorithms; an empty one means all.
func Offer(list []Algorithm) string {
	if len(list) == 0 {
		list = Algorithms()
	}
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = strconv.Itoa(int(a))
	}
	return strings.Join(names, ",")
}

// Choose is the first algorithm of an offer (the value of CHAP_A) that is in list, or in Algorithms if list
// is empty (RFC 7143, 6.2.1).
func Choose(offer string, list []Algorithm) (Algorithm, bool) {
	if len(list) == 0 {
		list = Algorithms()
	}
	for name := range strings.SplitSeq(offer, ",") {
		if n, ok := parseSmall(name); ok && slices.Contains(list, Algorithm(n)) {
			return Algorithm(n), true
		}
	}
	return 0, false
}
