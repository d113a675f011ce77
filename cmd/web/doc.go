// Package web is a page that shows what a daemon does: targets, logical units, sessions, throughput and latency as they
// move, the counters of our own RoCE, and the last events. It shows and changes nothing; it asks no other host for
// anything, and needs no network beyond the address it is served on.
//
//	http.ListenAndServe("127.0.0.1:9861", web.Handler(web.Source{Snapshot: service.snapshot, Events: ring.Since}))
package web
