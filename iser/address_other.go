//go:build !linux

package iser

import "reflect"

// address is where b starts in memory.
func address(b []byte) uintptr { return reflect.ValueOf(b).Pointer() }
