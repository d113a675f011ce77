// Package fabric is an RDMA provider inside this process: queue pairs joined by memory copies, with
// the strictness of a real device and completions in any legal order by seed. It is for tests and for
// `make demo`; it is not fast for its own sake and there is no network in it.
//
// Strict means: keys, bounds, rights and devices are checked on every access; what a device would
// answer with an error completion gets that completion and leaves the queue pair in the error state
// (IBTA, 9.9 and 10.10); queue slots come back only when a completion that covers them was polled; a
// completion queue that overflows is fatal. A region's remote addresses are not those of its memory,
// and its local and remote keys differ, so code that confuses them fails here.
//
// Without a seed a post executes at once what it can, on the caller's goroutine. With a seed
// (Options.Seed) work requests, acknowledgements, RDMA Read responses and the placement of RDMA Write
// data are held back for random times that a timer ends. Both work inside a testing/synctest bubble; in
// one, a seed alone brings the same times back.
//
//	f := fabric.New(fabric.Options{Seed: 7})
//	lis, err := f.Listen(netip.MustParseAddrPort("10.0.0.1:3260"))
//	ep, err := f.Resolve(ctx, lis.Addr())
//
// Standards: InfiniBand Architecture Specification (IBTA) volume 1, chapters 9 to 12; names as in
// libibverbs and librdmacm.
package fabric
