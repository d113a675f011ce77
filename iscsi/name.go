package iscsi

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLength is the longest iSCSI name in bytes (RFC 7143, 4.2.7.1).
const MaxNameLength = 223

// A Name is an iSCSI node name: iqn., eui. or naa. form (RFC 7143, 4.2.7).
type Name string

// ParseName checks and normalises (lower case) a name. Errors say which rule is broken.
func ParseName(s string) (Name, error) {
	if err := checkName(s); err != nil {
		return "", fmt.Errorf("iSCSI name %.64q: %w", s, err)
	}
	return Name(strings.ToLower(s)), nil
}

var errNamePrefix = errors.New(`does not start with "iqn.", "eui." or "naa."`)

func checkName(s string) error {
	if len(s) > MaxNameLength {
		return fmt.Errorf("longer than %d bytes", MaxNameLength)
	}
	if len(s) < 4 {
		return errNamePrefix
	}
	rest := s[4:]
	switch strings.ToLower(s[:4]) {
	case "iqn.":
		return checkIQN(rest)
	case "eui.":
		return checkHex(rest, 16)
	case "naa.":
		if len(rest) == 32 {
			return checkHex(rest, 32)
		}
		if len(rest) != 16 {
			return fmt.Errorf("%d hexadecimal digits, want 16 or 32", len(rest))
		}
		return checkHex(rest, 16)
	}
	return errNamePrefix
}

// checkIQN checks what follows "iqn.": yyyy-mm.reversed.domain[:anything] (RFC 7143, 4.2.7.4).
func checkIQN(s string) error {
	if len(s) < 8 || s[4] != '-' || s[7] != '.' || !digits(s[:4]) || !digits(s[5:7]) {
		return errors.New(`no date "yyyy-mm." after "iqn."`)
	}
	if m := s[5:7]; m < "01" || m > "12" {
		return fmt.Errorf("month %s", m)
	}
	domain, _, _ := strings.Cut(s[8:], ":")
	if domain == "" {
		return errors.New("no naming authority after the date")
	}
	for _, r := range s[8:] {
		if !nameRune(r) {
			return fmt.Errorf("character %q is not allowed", r)
		}
	}
	return nil
}

// nameRune reports whether r may stand in a name: letters and digits of any script, dash, dot and colon
// (RFC 7143, 4.2.7.2, after RFC 3722). The underscore is not allowed there but is common in the field;
// refusing it would refuse initiators that work everywhere else. Bytes that are not UTF-8 come as
// utf8.RuneError, which is neither.
func nameRune(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			r == '-' || r == '.' || r == ':' || r == '_'
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)
}

func checkHex(s string, n int) error {
	if len(s) != n {
		return fmt.Errorf("%d hexadecimal digits, want %d", len(s), n)
	}
	for _, c := range []byte(s) {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return fmt.Errorf("%q is not a hexadecimal digit", c)
		}
	}
	return nil
}

func digits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}
