// Package initiator is the iSCSI initiator engine and its public API, written once on the Datamover
// interface: discovery, login, sessions, and disks that read and write. The examples are its manual.
//
// A session is one connection. One goroutine, its loop, owns the datamover and all of the session's state
// (core.go and its neighbours, which have no goroutine and no clock of their own). Callers hand requests
// over in a mailbox and wait, each on a channel of its own. A warm read or write allocates nothing.
//
// Who gives up on a command, by a context or by CommandTimeout, gets the buffers back at once: the
// datamover parts with them, and ABORT TASK is sent. The command's slot and tag are not used again until
// the target has promised to be quiet about it and the transport has let go of its memory; a target that
// does not promise loses the session.
//
// Who we are is proved by CHAP, one-way or mutual, where there are credentials (auth.go).
//
// A Connection opens its session again when it was lost, and sends again what is safe to send again; the rule
// stands there. Paths are several sessions to one unit, through several portals, with failover. Package dial opens disks
// by URL.
//
// What it is not: there is no more than one connection in a session, no error
// recovery level above 0, and no bidirectional command.
//
// Standards: RFC 7143, RFC 7145 (what keys mean over iSER), SPC-4 and SBC-3 for what Disk sends.
package initiator
