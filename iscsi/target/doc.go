// Package target is the iSCSI target engine: portals, discovery, login, sessions, tasks and task
// management, written once on the Datamover interface. A connection is one event loop, one goroutine,
// which owns all of the connection's state.
package target
