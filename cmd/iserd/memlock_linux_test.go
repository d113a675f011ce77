package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLockLimitIsToldWithWhatToDo runs on a thread of its own without CAP_IPC_LOCK.
func TestLockLimitIsToldWithWhatToDo(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	if limit.Cur == unix.RLIM_INFINITY {
		t.Skip("nothing is too much here: the limit of locked memory is unlimited")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if !assert.NoError(t, unix.Capget(&header, &data[0])) {
			return
		}
		could := data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
		assert.Equal(t, could, capable(unix.CAP_IPC_LOCK))
		if could {
			assert.NoError(t, checkLockable(1<<40), "CAP_IPC_LOCK knows no limit")
			data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
			if !assert.NoError(t, unix.Capset(&header, &data[0])) {
				return
			}
		}
		assert.NoError(t, checkLockable(int64(limit.Cur)))
		assert.ErrorContains(t, checkLockable(1<<40), "cannot lock 1.0 TiB for RDMA buffers: limit is ")
		assert.ErrorContains(t, checkLockable(1<<40), "set LimitMEMLOCK=infinity in iserd.service or run `ulimit -l unlimited`")
	}()
	<-done
}
