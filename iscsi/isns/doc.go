// Package isns registers targets with an iSNS server (RFC 4171), where initiators look for them. It is a client for
// registering only: it asks the server for nothing and takes no notifications, and nobody who serves waits for it.
//
//	c := isns.New(isns.Config{Server: "192.0.2.1:3205", Entity: "disks.example", Nodes: nodes, Log: log})
//	go c.Run(ctx) // registers, refreshes, and takes everything back when ctx ends
//
// Nothing says to a client who the server is: what goes over the wire are names and addresses, and no more is
// believed of the answer than a status and a period.
package isns
