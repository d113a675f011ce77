package backstore

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// maxSizeText bounds the text of a size: 2^63-1 has 19 digits, and no fraction of a TiB that is whole
// bytes needs more than 40 decimals.
const maxSizeText = 64

var errSize = errors.New(`not a size: want bytes, or a number with k, m, g or t ("4096", "4k", "1.5GiB": powers of 1024)`)

// ParseSize reads a size in bytes: "4096", "4k", "4KiB", "1.5GiB" (IEC; k, m, g, t mean 1024 powers).
// KB, MB and the like are refused, since they mean different things to different people.
func ParseSize(s string) (int64, error) {
	number := strings.TrimRight(s, "kmgtibKMGTIB")
	shift, ok := unitShift(strings.ToLower(s[len(number):]))
	number = strings.TrimSuffix(number, " ")
	if !ok || len(s) > maxSizeText || !decimal(number) {
		return 0, fmt.Errorf("%.64q is %w", s, errSize)
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("%q is %w", s, errSize)
	}
	r.Mul(r, new(big.Rat).SetInt64(1<<shift))
	if !r.IsInt() {
		return 0, fmt.Errorf("size %q is not a whole number of bytes", s)
	}
	if !r.Num().IsInt64() {
		return 0, fmt.Errorf("size %q is more than 8 EiB - 1", s)
	}
	return r.Num().Int64(), nil
}

// Errors of ParseRange.
var (
	errRange      = errors.New("not a range; give 0-1MiB, 1GiB- or 4096+512")
	errEmptyRange = errors.New("an empty range")
)

// ParseRange reads a range of bytes [from, to): FROM-TO, FROM- (to the end: to is math.MaxInt64) or FROM+SIZE, where each is
// a size as ParseSize reads it. A range has at least one byte.
func ParseRange(s string) (from, to int64, err error) {
	at := strings.IndexAny(s, "-+")
	if at < 0 {
		return 0, 0, errRange
	}
	if from, err = ParseSize(s[:at]); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errRange, err)
	}
	end := s[at+1:]
	if end == "" && s[at] == '-' {
		return from, math.MaxInt64, nil
	}
	if to, err = ParseSize(end); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errRange, err)
	}
	if s[at] == '+' {
		if to > math.MaxInt64-from {
			return 0, 0, errRange
		}
		to += from
	}
	if to <= from {
		return 0, 0, errEmptyRange
	}
	return from, to, nil
}

// unitShift is the power of two that a unit, in lower case, stands for.
func unitShift(unit string) (int, bool) {
	switch unit {
	case "", "b":
		return 0, true
	case "k", "kib":
		return 10, true
	case "m", "mib":
		return 20, true
	case "g", "gib":
		return 30, true
	case "t", "tib":
		return 40, true
	}
	return 0, false
}

// decimal tells whether s is digits with at most one point between them.
func decimal(s string) bool {
	whole, fraction, point := strings.Cut(s, ".")
	return digits(whole) && (!point || digits(fraction))
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
