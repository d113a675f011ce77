package metrics

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// aliveLimit is how long a snapshot may take before the daemon does not count as alive: it takes every lock that
	// the administration takes.
	aliveLimit = 5 * time.Second
	// maxScrapes is how many requests for metrics are served at once; others get 503.
	maxScrapes = 4
)

// A Source is where the answers come from.
type Source struct {
	// Snapshot describes the daemon now.
	Snapshot func() admin.Snapshot
	// Ready is nil while logins are taken, and says why they are not.
	Ready func() error
}

// Handler serves /metrics, /healthz and /readyz, to GET and HEAD. /healthz answers 200 as long as the daemon can say how
// it is; /readyz as long as it takes logins; else both answer 503 with the reason.
func Handler(s Source) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(s.Snapshot), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	a := &alive{snapshot: s.Snapshot, busy: make(chan struct{}, 1)}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { answer(w, a.check(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Ready()) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "iserd: /metrics /healthz /readyz")
	})
	return mux
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

// An alive finds out whether a snapshot can be had. Of checks that hang there is one goroutine at most.
type alive struct {
	snapshot func() admin.Snapshot
	busy     chan struct{}
}

func (a *alive) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	select {
	case a.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("no answer within %v: the daemon is stuck", aliveLimit)
	}
	done := make(chan struct{})
	go func() {
		defer func() { <-a.busy }()
		a.snapshot()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no answer within %v: the daemon is stuck", aliveLimit)
	}
}
