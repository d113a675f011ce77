package rdma

import "fmt"

// String names a status as libibverbs does.
func (s Status) String() string { return fmt.Sprintf("status %d", uint8(s)) }
