package iscsi

import (
	"bytes"
	"strconv"
	"strings"
)

// Bounds of a text segment (RFC 7143, 6.1).
const (
	// MaxTextPairs is how many pairs ParseText takes. Even if each is a key of MaxKeyLength bytes that is
	// answered NotUnderstood, the answer still fits in one login PDU of 8192 bytes, so that a short
	// question cannot make a long answer before anyone has logged in.
	MaxTextPairs = 96
	// MaxKeyLength is the longest key name, bytes.
	MaxKeyLength = 63
	// MaxValueLength is the longest value, bytes: 6.1 allows 255 for simple values, lists and large
	// binary values may be longer.
	MaxValueLength = 8192
)

// The answers that stand for "no value" (RFC 7143, 6.2).
const (
	valueNotUnderstood = "NotUnderstood"
	valueReject        = "Reject"
	valueIrrelevant    = "Irrelevant"
	valueYes           = "Yes"
	valueNo            = "No"
	valueNone          = "None"
	valueCRC32C        = "CRC32C"
)

// A KeyValue is one key=value pair of a text segment.
type KeyValue struct{ Key, Value string }

// ParseText splits a text segment into pairs, in order. Pairs end with a NUL, which the last one may lack;
// empty pairs are skipped. Bounds: MaxTextPairs pairs, key names of at most MaxKeyLength bytes, values of
// at most MaxValueLength. An error is a *WireError.
func ParseText(b []byte) ([]KeyValue, error) { return ParseTextLimit(b, MaxTextPairs) }

// ParseTextLimit is ParseText with another bound on the number of pairs: the answer to SendTargets has no
// natural one.
func ParseTextLimit(b []byte, maxPairs int) ([]KeyValue, error) {
	var kvs []KeyValue
	for off := 0; off < len(b); {
		pair := b[off:]
		if i := bytes.IndexByte(pair, 0); i >= 0 {
			pair = pair[:i]
		}
		if len(pair) > 0 {
			if len(kvs) == maxPairs {
				return nil, &WireError{What: "number of text pairs", Offset: off, Err: ErrLength}
			}
			kv, err := parsePair(pair, off)
			if err != nil {
				return nil, err
			}
			kvs = append(kvs, kv)
		}
		off += len(pair) + 1
	}
	return kvs, nil
}

func parsePair(pair []byte, off int) (KeyValue, error) {
	key, value, found := bytes.Cut(pair, []byte{'='})
	switch {
	case !found:
		return KeyValue{}, &WireError{What: "text pair without =", Offset: off, Err: ErrReserved}
	case len(key) == 0 || len(key) > MaxKeyLength:
		return KeyValue{}, &WireError{What: "text key", Offset: off, Err: ErrLength}
	case len(value) > MaxValueLength:
		return KeyValue{}, &WireError{What: "text value", Offset: off, Err: ErrLength}
	}
	for i, c := range key {
		// 6.1 allows letters, digits and .-+@_ only. What cannot be shown is refused, so that a key
		// can be answered and logged as it is.
		if c <= ' ' || c >= 0x7f {
			return KeyValue{}, &WireError{What: "text key", Offset: off + i, Err: ErrReserved}
		}
	}
	return KeyValue{string(key), string(value)}, nil
}

// AppendText appends pairs in wire form.
func AppendText(b []byte, kvs ...KeyValue) []byte {
	for _, kv := range kvs {
		b = append(b, kv.Key...)
		b = append(b, '=')
		b = append(b, kv.Value...)
		b = append(b, 0)
	}
	return b
}

// parseNumber reads a numerical value, decimal or hexadecimal (RFC 7143, 6.1). One of more than 32 bits
// is not ok: no key has it in its range.
func parseNumber(s string) (v uint32, ok bool) {
	base := 10
	if len(s) > 2 && (strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X")) {
		s, base = s[2:], 16
	}
	n, err := strconv.ParseUint(s, base, 32)
	return uint32(n), err == nil
}

func parseBool(s string) (v uint32, ok bool) {
	switch s {
	case valueYes:
		return 1, true
	case valueNo:
		return 0, true
	}
	return 0, false
}

func formatNumber(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

func formatBool(v uint32) string {
	if v != 0 {
		return valueYes
	}
	return valueNo
}
