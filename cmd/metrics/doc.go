// Package metrics shows what a daemon counts: as Prometheus metrics, and as the answers of /healthz and /readyz. All
// is made of the snapshot that the admin API gives too (package admin), when somebody asks.
//
//	http.ListenAndServe(addr, metrics.Handler(metrics.Source{Snapshot: service.snapshot, Ready: service.ready}))
//
// docs/METRICS.md lists the metrics; a test holds it to the table here. No label carries the name of an initiator.
package metrics
