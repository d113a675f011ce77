// Package admin is the admin API of iserd: what goes over its Unix socket, and a client. It is JSON over HTTP, below
// /v1/; anything that speaks HTTP can use it:
//
//	curl --unix-socket /run/iserd/admin.sock http://iserd/v1/status
//
// Fields may be added to what is answered. Nothing is taken away or given another meaning below /v1/.
//
// The package decides nothing: the daemon's part is cmd/iserd.
package admin
