package chap

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Errors of values.
var (
	errEncoding = errors.New("neither a hexadecimal nor a base64 constant")
	errEmpty    = errors.New("no bytes")
)

// Encode writes binary values, CHAP_C and CHAP_R, as hexadecimal constants (RFC 7143, 6.1). libiscsi
// understands no others.
func Encode(b []byte) string { return "0x" + hex.EncodeToString(b) }

// Decode reads a binary value, hexadecimal (0x, either case, an even number of digits) or base64 (0b, with
// or without padding), of 1 to limit bytes.
func Decode(s string, limit int) ([]byte, error) {
	var b []byte
	var err error
	switch {
	case len(s) > 2+2*limit: // hexadecimal is the longer notation
		return nil, fmt.Errorf("more than %d bytes", limit)
	case strings.HasPrefix(s, "0x"), strings.HasPrefix(s, "0X"):
		b, err = hex.DecodeString(s[2:])
	case strings.HasPrefix(s, "0b"), strings.HasPrefix(s, "0B"):
		b, err = decode64(s[2:])
	default:
		err = errEncoding
	}
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, errEmpty
	case len(b) > limit:
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return b, nil
}

// decode64 reads base64; line ends, which the library skips, have no place in a text value.
func decode64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errEncoding
	}
	if strings.HasSuffix(s, "=") {
		return base64.StdEncoding.Strict().DecodeString(s)
	}
	return base64.RawStdEncoding.Strict().DecodeString(s)
}

// ParseID reads CHAP_I, a number of one byte, decimal or hexadecimal.
func ParseID(s string) (byte, error) {
	n, ok := parseSmall(s)
	if !ok {
		return 0, fmt.Errorf("identifier %.16q is not a number from 0 to 255", s)
	}
	return n, nil
}

// FormatID writes CHAP_I.
func FormatID(id byte) string { return strconv.Itoa(int(id)) }

func parseSmall(s string) (byte, bool) {
	base := 10
	if strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X") {
		s, base = s[2:], 16
	}
	n, err := strconv.ParseUint(s, base, 8)
	return byte(n), err == nil
}
