// Package target is the iSCSI target engine: portals, discovery, login, sessions, tasks and task
// management, written once on the Datamover interface (RFC 7143, RFC 7145). It knows no transport: what
// differs between TCP and RDMA comes through iscsi.Traits and iscsi.TargetDatamover.
//
// A connection is one event loop, one goroutine (conn), which owns all of the connection's state, and the
// session's if that has one connection. Others reach it through its inbox. How the connections of a session
// take turns stands in members.go.
//
//	portal ──Accept──► conn.run:  Wait ─► inbox, events, timers ─► Flush ─► Wait ...
//	                     ▲ inbox           │ SCSI command
//	                     │                 ├─ memory: store answers ────────► PutData, Respond
//	                     ├── workers ◄─────┼─ store may block
//	                     └── arena.Pool ◄──┴─ no buffers just now
//
// What waits, for what, and for how long:
//
//	a connection before its login     LoginTimeout
//	a login for the session, or the connection, that it replaces  reinstateTimeout, then status 0301
//	a logout of another connection for its end  reinstateTimeout, then response 3
//	a refused login for its answer to leave, a dropped session for its message  lastPDUTimeout
//	write data that is due            dataTimeout, dataTimeoutMax, then the session ends
//	a command for older ones of its unit (SAM-5, 8.6)  until they have ended; each of them is in this table
//	task management for a busy store  taskManagementTimeout, then response 255
//	PREEMPT AND ABORT for the same    taskManagementTimeout, then 0B/00/00
//	an idle session for a ping        PingInterval + PingTimeout
//	a session's first request, and queued PDUs to leave  stallTimeout
//	a discovery session for a request discoveryIdle
//	a logged out peer to close        lingerTime
//
// How memory cannot deadlock stands in memory.go. Who may log in to what, and sees what of it, stands in access.go,
// how initiators prove who they are in auth.go, and what one peer may use up in table.go.
//
//	s := target.New(target.Config{Pool: pool, Log: log})
//	s.AddTarget(target.TargetConfig{Name: name, Device: dev, Negotiate: iscsi.DefaultConfig()})
//	l, err := tcp.Listen(":3260")
//	err = s.Serve(l, target.PortalConfig{})
//	...
//	s.Shutdown(ctx)
//
// The task management functions of RFC 7144 stand in query.go: a session has them if the initiator has asked for
// iSCSIProtocolLevel 2.
//
// Reject is sent only for a Text Request that cannot be answered and for a SNACK, which takes no CmdSN and asks
// for error recovery that was not agreed on. It is useless for a SCSI Command (the
// initiator's task hangs on) and harmful for others (some initiators crash on it), so that every other
// breach of the protocol that has no answer of its own ends the connection, over every transport, as
// ErrorRecoveryLevel 0 allows (RFC 7143, 7.1.5).
package target
