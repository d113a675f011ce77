// Package verify finds out whether a disk keeps what is written to it: it writes sectors that say of themselves
// where and when they were written (package stamp), reads them back into poisoned buffers, and explains each that
// is wrong.
//
//	r := verify.New([]verify.Disk{d}, verify.Plan{Ranges: []verify.Range{{0, 1 << 30}}, RequestBytes: 64 << 10, Seed: 7, Runs: 1, Depth: 8})
//	res, err := r.Run(ctx)
//
// A run writes all of the ranges, flushes, and reads all of them: in an order that is random but needs no memory,
// so that 100 TiB are verified in the memory that 1 MiB takes. With Plan.Overlap writers and readers run against each
// other over the same blocks, and each sector read must be one that the order of events allows: see history.
//
// It is not a benchmark, and it knows no protocol: a Disk is all that it is given.
package verify
