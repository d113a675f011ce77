package main

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// checkLockable tells before the first connection fails that memory of n bytes cannot be registered: the
// kernel counts registered memory against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK
// (ib_umem_get). What queues need besides is little and is left out.
func checkLockable(n int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	if uint64(n) <= limit.Cur || capable(unix.CAP_IPC_LOCK) {
		return nil
	}
	return fmt.Errorf("cannot lock %s for RDMA buffers: limit is %s; set LimitMEMLOCK=infinity in iserd.service or run `ulimit -l unlimited`",
		humanize.IBytes(uint64(n)), humanize.IBytes(limit.Cur))
}

// capable tells whether the process has a capability below 32; false if that cannot be found out.
func capable(c uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // version 3 has two sets of 32
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	return data[0].Effective&(1<<c) != 0
}
