package web

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ask(h http.Handler, method, target, host string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	h.ServeHTTP(w, r)
	return w
}

func simple() Source {
	return Source{
		Snapshot: func() admin.Snapshot { return admin.Snapshot{Version: "v1"} },
		Events: func(since uint64) admin.Events {
			return admin.Events{Events: []admin.Event{}, Next: since + 1}
		},
	}
}

var paths = []string{"/", "/app.js", "/style.css", "/icon.svg", "/api/snapshot", "/api/events"}

// TestThePageChangesNothing: it can be looked at, and nothing else can be done.
func TestThePageChangesNothing(t *testing.T) {
	h := Handler(simple())
	for _, at := range paths {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			assert.Equal(t, http.StatusOK, ask(h, method, at, "127.0.0.1:9861").Code, "%s %s", method, at)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace, "EAT"} {
			w := ask(h, method, at, "127.0.0.1:9861")
			assert.Equal(t, http.StatusMethodNotAllowed, w.Code, "%s %s", method, at)
			assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"), "%s %s", method, at)
		}
	}
	for _, at := range []string{"/index.html", "/page/index.html", "/../handler.go", "/api", "/api/snapshot/x", "/app.js/", "/.git/config"} {
		code := ask(h, http.MethodGet, at, "127.0.0.1").Code
		assert.Contains(t, []int{http.StatusNotFound, http.StatusTemporaryRedirect, http.StatusMovedPermanently}, code, at)
	}
}

func TestAnswersOfThePage(t *testing.T) {
	h := Handler(simple())
	for at, typ := range map[string]string{
		"/": "text/html; charset=utf-8", "/app.js": "text/javascript; charset=utf-8", "/style.css": "text/css; charset=utf-8",
		"/icon.svg": "image/svg+xml", "/api/snapshot": "application/json", "/api/events": "application/json",
	} {
		w := ask(h, http.MethodGet, at, "[::1]:9861")
		assert.Equal(t, typ, w.Header().Get("Content-Type"), at)
	}
	w := ask(h, http.MethodGet, "/other", "localhost")
	assert.Equal(t, http.StatusNotFound, w.Code)
	for name, want := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		assert.Equal(t, want, w.Header().Get(name), "even of what is not there")
	}
	var s admin.Snapshot
	require.NoError(t, json.Unmarshal(ask(h, http.MethodGet, "/api/snapshot", "localhost").Body.Bytes(), &s))
	assert.Equal(t, "v1", s.Version)
	var e admin.Events
	require.NoError(t, json.Unmarshal(ask(h, http.MethodGet, "/api/events?since=41", "localhost").Body.Bytes(), &e))
	assert.EqualValues(t, 42, e.Next)
	for _, bad := range []string{"-1", "x", "18446744073709551616", "1%20"} {
		assert.Equal(t, http.StatusBadRequest, ask(h, http.MethodGet, "/api/events?since="+bad, "localhost").Code, bad)
	}
}

// TestOnlyOurNamesAreAnswered: a page of elsewhere whose name points here does not learn who our initiators are.
func TestOnlyOurNamesAreAnswered(t *testing.T) {
	h := Handler(simple())
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:9861": 200, "[::1]": 200, "[::1]:9861": 200, "192.0.2.1:80": 200, "localhost": 200, "localhost:9861": 200,
		"": 403, "evil.example": 403, "evil.example:9861": 403, "localhost.evil.example": 403, "[evil]:1": 403, "127.0.0.1.evil.example": 403, "[": 403, ":9861": 403,
	} {
		w := ask(h, http.MethodGet, "/api/snapshot", host)
		assert.Equal(t, want, w.Code, "%q", host)
		if want != http.StatusOK {
			assert.NotContains(t, w.Body.String(), "v1")
		}
	}
}

// TestManyPagesCostOneSnapshot, and it is not old.
func TestManyPagesCostOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		s := simple()
		s.Snapshot = func() admin.Snapshot {
			made.Add(1)
			return admin.Snapshot{}
		}
		h := Handler(s)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { assert.Equal(t, http.StatusOK, ask(h, http.MethodGet, "/api/snapshot", "localhost").Code) })
		}
		wg.Wait()
		assert.EqualValues(t, 1, made.Load())
		time.Sleep(freshFor)
		ask(h, http.MethodGet, "/api/snapshot", "localhost")
		assert.EqualValues(t, 2, made.Load())
	})
}

// TestThePageIsWhole: every file has a media type, none names another host, and nothing in the page is code or style that
// the policy would not let in.
func TestThePageIsWhole(t *testing.T) {
	require.NoError(t, fs.WalkDir(page, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		assert.NotEmpty(t, types[path.Ext(name)], name)
		b, err := fs.ReadFile(page, name)
		text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
		assert.NotRegexp(t, regexp.MustCompile(`(?i)https?:|wss?:|[("']//`), text, name)
		if strings.HasSuffix(name, ".html") {
			assert.NotRegexp(t, regexp.MustCompile(`(?i)\son[a-z]+=|\sstyle=|<style|<script(?:[^>]*)>[^<]`), text, name)
		}
		assert.NotRegexp(t, regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`), text, "%s: text goes in as text", name)
		return err
	}))
}
