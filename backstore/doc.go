// Package backstore is where blocks live: stores that read and write at byte offsets. It knows nothing
// of SCSI or of networks. Package backstoretest is the suite that every store passes.
//
//	s, err := backstore.Open("file", backstore.Options{"path": "/srv/a.img", "size": "64GiB"})
//
// A store that wraps another one (Wraps) is made by OpenOver. Two are for tests of everything else: FaultStore does
// wrong what it is told to, PatternStore is a disk of any size that computes its blocks and checks what is written.
//
// What only some stores can do (give space back, zero, tell extents, change size) are interfaces of their own
// in optional.go; callers ask by a type assertion.
//
// # What overlapping requests see
//
// A store does not order requests that overlap in time. A read that overlaps a write may see old bytes,
// new bytes, or a mixture; two overlapping writes may leave a mixture. SAM-5 leaves the order of simple
// tasks open and initiators do not overlap them; whoever needs an order waits for the first to complete.
// After a write has returned, every later read sees it.
//
// # What survives
//
// A write is durable once a later Flush has returned without error, or at once if it was made with fua
// or the store has no write cache (Info.WriteCache). After a failed Flush the store does not pretend that
// a second one could mend it: see the file store. The same holds for zeros and for ranges given back: a store
// without a write cache makes them durable at once.
package backstore
