// Package iser is the iSER datamover (RFC 7145): iSCSI PDUs in RDMA Sends, data by RDMA Read and Write.
// It knows nothing of which provider carries it (package rdma), and it is no engine: login, sequence
// numbers and tasks are those of packages iscsi/target and iscsi/initiator, which drive it through
// iscsi.Datamover.
//
//	l, err := iser.Listen(provider, netip.MustParseAddrPort("10.0.0.1:3260"), iser.TargetConfig{})
//	server.Serve(l, target.PortalConfig{})
//
//	d := &iser.Dialer{Provider: provider}
//	session, err := initiator.Open(ctx, d, "10.0.0.1:3260", "iqn.2026-01.test:disk", initiator.Options{})
//
// What holds on every connection:
//
//   - A target's data goes to and comes from memory given to Listener.Register in place; other memory is
//     copied. An initiator's goes through registered memory of the connection's own, or in place if its
//     caller's memory was registered (iscsi.Registrar, which is behind initiator.Session's AllocBuffer).
//   - The RDMA Writes of a task and its response are one chain on one queue pair, in the order of Respond;
//     RDMA Reads have completed before EventGot.
//   - Memory that a work request uses is not used for anything else before its completion, or before the
//     queue pair is gone.
//   - Whatever a peer sends that breaks the rules ends its connection with an error that says why.
//
// Each command of the initiator opens its own memory to the target, for its own time and direction, with a
// type 2 memory window, whose key ends with the response or with an abort. Where a device has none (siw), or
// none that is safe (rxe), or where InitiatorConfig.NoInvalidate says so, the memory is plain regions, open to the target for the life of the
// connection: a hostile target can spoil what other commands of the same session read. The initiator says so
// in its CM private data (no remote invalidation), and keeps the memory of commands that got no response until
// the connection ends.
//
// Standards: RFC 7145 and RFC 5047 (datamover architecture); InfiniBand Architecture Specification, annex
// A12 (iSER header with virtual addresses, CM private data). Of RFC 7145's optional parts Hello is not
// there, nor are bidirectional commands.
package iser
