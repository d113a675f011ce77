package roce_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// TestIdleQueuePairIsSmall: what a connection costs at both ends beside its buffers, with queues as deep as iSER's.
func TestIdleQueuePairIsSmall(t *testing.T) {
	const pairs, limit = 16, 512 << 10 // bytes a queue pair
	s := sides{open(t, roce.Options{}), open(t, roce.Options{})}
	l, err := s.Listen(loopback())
	if !assert.NoError(t, err) {
		return
	}
	defer l.Close()
	connect := func() { rdmatest.ConnectTo(t.Context(), t, s, l, rdmatest.Config{Depth: 512, Memory: 4096}) }
	connect() // what is made once
	before := heap()
	for range pairs {
		connect()
	}
	each := (heap() - before) / (2 * pairs)
	t.Logf("%d KiB a queue pair", each>>10)
	assert.Less(t, each, uint64(limit))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
