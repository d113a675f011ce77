package web

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/goiser/goiser/cmd/admin"
)

//go:embed page
var page embed.FS

// freshFor is how long a snapshot serves everybody who asks, so that many open pages cost as much as one.
const freshFor = 250 * time.Millisecond

// policy lets the page load what comes with it, and nothing else: no other origin, no inline code, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// types are the media types of the page's files: what the system says of them may be anything.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// A Source is where the answers come from.
type Source struct {
	// Snapshot describes the daemon now.
	Snapshot func() admin.Snapshot
	// Events are those after a number; 0: all that are kept.
	Events func(since uint64) admin.Events
}

// Handler serves the page, and below /api what it shows, to GET and HEAD only. It answers by address or as localhost: a
// page of elsewhere whose name has been made to point here (DNS rebinding) gets nothing.
func Handler(s Source) http.Handler {
	mux := http.NewServeMux()
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(fmt.Sprintf("web: %v", err))
	}
	list, err := fs.ReadDir(files, ".")
	if err != nil {
		panic(fmt.Sprintf("web: %v", err))
	}
	for _, f := range list {
		data, err := fs.ReadFile(files, f.Name())
		if err != nil {
			panic(fmt.Sprintf("web: %v", err))
		}
		at := "/" + f.Name()
		if at == "/index.html" {
			at = "/{$}"
		}
		mux.HandleFunc("GET "+at, func(w http.ResponseWriter, _ *http.Request) { send(w, types[path.Ext(f.Name())], data) })
	}
	c := &cache{snapshot: s.Snapshot}
	mux.HandleFunc("GET /api/snapshot", func(w http.ResponseWriter, _ *http.Request) { send(w, "application/json", c.get()) })
	mux.HandleFunc("GET /api/events", func(w http.ResponseWriter, r *http.Request) {
		since, err := strconv.ParseUint(cmp.Or(r.FormValue("since"), "0"), 10, 64)
		if err != nil {
			http.Error(w, "since: want the number of an event", http.StatusBadRequest)
			return
		}
		send(w, "application/json", encode(s.Events(since)))
	})
	return guard(mux)
}

// guard sets what holds for every answer, and turns away requests by names that are not ours.
func guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		if !ours(r.Host) {
			http.Error(w, "ask for this page by address, or as localhost", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// ours reports whether a Host header is an address or localhost.
func ours(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost"
}

func send(w http.ResponseWriter, typ string, data []byte) {
	w.Header().Set("Content-Type", typ)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // whoever asked has gone
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("web: %v", err)) // of our own types
	}
	return data
}

// A cache keeps a snapshot for freshFor.
type cache struct {
	snapshot func() admin.Snapshot

	mu   sync.Mutex
	at   time.Time
	data []byte
}

func (c *cache) get() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data == nil || time.Since(c.at) >= freshFor {
		c.data, c.at = encode(c.snapshot()), time.Now()
	}
	return c.data
}
