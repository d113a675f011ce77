package iser

import "unsafe"

// address is where b starts in memory. The address is only compared, never made a pointer again; memory
// that was registered does not move. (package reflect could tell it as well, but allocates.)
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
