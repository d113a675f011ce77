package web

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// browserLimit is how long a browser may take for anything, on a machine that has much else to do.
const browserLimit = 2 * time.Minute

// A fakeDaemon is a daemon whose counters go on with every snapshot while it has load.
type fakeDaemon struct {
	mu       sync.Mutex
	load     bool
	turns    uint64
	sessions []admin.Session
	targets  int
	since    time.Time
}

const hostileText = `<img src=x onerror="document.title='evil'"><b id=evil>`

func (d *fakeDaemon) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *fakeDaemon) snapshot() admin.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.load {
		d.turns++
	}
	reads, writes := 1000*d.turns, 500*d.turns
	s := admin.Snapshot{
		Time: time.Now(), Since: d.since, Version: "v1.2.3", Config: admin.Config{Unsaved: true},
		Portals:   []admin.Portal{{Address: "127.0.0.1:3260"}},
		Providers: []admin.Provider{{Used: "roce", Counters: map[string]uint64{"sent_packets": 7 * reads, "retransmits": d.turns, "qps": 2, "sent_bytes": reads << 12}}},
		Sessions:  []admin.Session{},
		Buffers:   admin.Buffers{TotalBytes: 512 << 20, FreeBytes: 384 << 20},
		Stats: admin.Stats{
			ReadBytes: reads << 12, WrittenBytes: writes << 12, InFlight: 3, Aborted: 1,
			Commands: []admin.Commands{{Op: "read", Status: "good", Count: reads}, {Op: "write", Status: "good", Count: writes}, {Op: "read", Status: "check condition", Count: 2}},
			Latency: map[string]admin.Histogram{
				"read":  {Buckets: []admin.Bucket{{FromSeconds: 64e-6, UpToSeconds: 80e-6, Count: reads}}},
				"write": {Buckets: []admin.Bucket{{FromSeconds: 1e-3, UpToSeconds: 1.25e-3, Count: writes}}},
			},
		},
	}
	for i := range d.targets {
		s.Targets = append(s.Targets, admin.Target{Name: fmt.Sprintf("iqn.2026-01.example:disk%d", i), Enabled: true, Sessions: 1, LUNs: []admin.LUN{
			{Number: 0, Backstore: fmt.Sprintf("vm%d", i), SizeBytes: 64 << 30, Commands: reads + writes, ReadBytes: reads << 12, WrittenBytes: writes << 12, Errors: uint64(i)},
		}})
	}
	for _, x := range d.sessions {
		x.ReadBytes, x.WrittenBytes, x.Commands = reads<<12, writes<<12, reads+writes
		s.Sessions = append(s.Sessions, x)
	}
	return s
}

func (d *fakeDaemon) events(since uint64) admin.Events {
	all := []admin.Event{
		{Seq: 1, Time: time.Now(), Level: "info", Kind: "login", Message: "logged in over tcp", Initiator: "iqn.2026-01.example:host"},
		{Seq: 2, Time: time.Now(), Level: "warning", Kind: "session_lost", Message: hostileText, Error: "cable"},
	}
	return admin.Events{Events: all[min(since, 2):], Next: 2}
}

// A browser is a real Chromium with one page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	asked    []string // URLs
	problems []string // what the console has
}

// open starts Chromium and opens a page. There is no name it could resolve.
func open(t *testing.T, url string) *browser {
	bin, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("NEED_CHROMIUM") != "" {
			t.Fatal("NEED_CHROMIUM is set, and there is no chromium")
		}
		t.Skip("chromium is not installed (Debian: chromium); CI has it")
	}
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(bin), chromedp.UserDataDir(t.TempDir()), chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	if os.Geteuid() == 0 {
		o = append(o, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(context.Background(), browserLimit)
	ctx, cancelBrowser := chromedp.NewExecAllocator(ctx, o...)
	ctx, cancelPage := chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf))
	t.Cleanup(func() {
		assert.NoError(t, chromedp.Cancel(ctx)) // and wait for its end
		cancelPage()
		cancelBrowser()
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	call(b, network.Enable, network.EnableParams{})
	call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url))
	return b
}

func (b *browser) hear(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, ev.Request.URL)
	case *network.EventWebSocketCreated:
		b.asked = append(b.asked, ev.URL)
	case *log.EventEntryAdded:
		b.problems = append(b.problems, ev.Entry.Text+" "+ev.Entry.URL)
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, ev.ExceptionDetails.Text+" "+ev.ExceptionDetails.URL)
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprintf("console.%s", ev.Type))
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// call sends one command of the protocol.
func call[P, R any](b *browser, cmd cdp.Command[P, R], params P) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, cmd, params)
	require.NoError(b.t, err)
}

// get evaluates an expression to a value.
func get[T any](b *browser, expr string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expr))
	require.NoError(b.t, err, expr)
	return v
}

func (b *browser) text(id string) string {
	return get[string](b, `document.getElementById("`+id+`").textContent`)
}

// until waits for an expression to be true.
func (b *browser) until(expr string) {
	b.t.Helper()
	for !get[bool](b, expr) {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-b.ctx.Done():
			require.NoError(b.t, b.ctx.Err(), expr)
		}
	}
}

// shoot keeps a picture of the page where SCREENSHOTS says.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = b.t.TempDir()
	}
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// quiet checks that the console has nothing, and that nothing but the page's own origin has been asked.
func (b *browser) quiet(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(b.t, b.problems)
	assert.NotEmpty(b.t, b.asked)
	for _, url := range b.asked {
		assert.True(b.t, strings.HasPrefix(url, origin+"/"), "the page asked %s", url)
	}
}

// contrasts is the least contrast of text to what lies behind it (WCAG 2.2, 1.4.3), over all text that is shown.
const contrasts = `(() => {
	const parse = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	let least = 21;
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
		let behind = e, back = [0, 0, 0, 0];
		while (behind && (back = parse(getComputedStyle(behind).backgroundColor)).length === 4 && back[3] === 0) behind = behind.parentElement;
		const a = light(parse(getComputedStyle(e).color)), b = light(back);
		least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
	}
	return least;
})()`

// TestThePageInABrowser is the whole of it in a real Chromium: numbers move under load and rest without, nothing leaves the
// origin, the console stays empty.
func TestThePageInABrowser(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := &fakeDaemon{load: true, targets: 3, since: time.Now().Add(-time.Hour), sessions: []admin.Session{
		{ID: 7, Initiator: "iqn.2026-01.example:host-a", Remote: "10.0.0.7:41000", Target: "iqn.2026-01.example:disk1", Transport: "iser", Since: time.Now().Add(-time.Minute)},
	}}
	srv := httptest.NewServer(Handler(Source{Snapshot: d.snapshot, Events: d.events}))
	defer srv.Close()
	b := open(t, srv.URL+"/")

	b.until(`document.getElementById("read-rate").textContent.includes("iB/s")`)
	assert.Equal(t, "v1.2.3", b.text("version"))
	assert.Contains(t, b.text("state"), "configuration not saved")
	assert.Equal(t, "3", b.text("inflight"))
	assert.Equal(t, "75% of 512 MiB", b.text("buffers"))
	assert.Equal(t, "2, 1", b.text("failed"))
	b.until(`/^1\.2\d ms$/.test(document.getElementById("p99").textContent)`)
	assert.Contains(t, b.text("luns"), "iqn.2026-01.example:disk2")
	assert.Contains(t, b.text("sessions"), "iqn.2026-01.example:host-a")
	assert.Contains(t, b.text("rdma"), "retransmits")
	assert.Contains(t, b.text("events"), hostileText, "shown as text")
	assert.False(t, get[bool](b, `document.getElementById("evil") !== null || document.title !== "iserd"`))

	t.Run("moves", func(t *testing.T) {
		const line = `document.querySelector("#throughput path.read").getAttribute("d")`
		before := get[string](b, line)
		b.until(line + ` !== ` + fmt.Sprintf("%q", before))
		d.set(func() { d.load = false })
		b.until(`document.getElementById("read-rate").textContent === "0 B/s" && document.getElementById("p99").textContent === "–"`)
		d.set(func() { d.load = true })
		b.until(`document.getElementById("read-rate").textContent.includes("iB/s")`)
		b.until(`/MiB\/s/.test(document.querySelector("#sessions tr").cells[6].textContent)`)
	})
	t.Run("pauses", func(t *testing.T) {
		b.do(chromedp.Click(chromedp.CSS("#pause")))
		assert.Equal(t, "true", get[string](b, `document.getElementById("pause").getAttribute("aria-pressed")`))
		b.do(chromedp.Click(chromedp.CSS("#pause")))
		b.until(`document.getElementById("read-rate").textContent.includes("iB/s")`)
	})
	t.Run("keyboard", func(t *testing.T) {
		// What can be reached, in order, with its name; and each shows that it has the focus.
		assert.Equal(t, "Skip to the figures|Pause|filter|h-luns|h-sessions|h-rdma|h-events", get[string](b, `(() => {
			const all = [...document.querySelectorAll("a[href], button, input, [tabindex='0']")].filter((e) => e.tabIndex === 0 && !e.disabled);
			return all.map((e) => e.getAttribute("aria-labelledby") || e.textContent.trim() && !e.closest(".scroll") && e.textContent.trim() || e.id).join("|");
		})()`))
		b.do(chromedp.Focus(chromedp.CSS("#filter")))
		call(b, input.InsertText, input.InsertTextParams{Text: "disk1"})
		b.until(`document.querySelectorAll("#luns tr").length === 1`)
		b.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("filter").value = ""`))
		b.until(`document.querySelectorAll("#luns tr").length === 3`)
	})
	t.Run("reader", func(t *testing.T) {
		for _, id := range []string{"throughput", "latency"} {
			assert.Contains(t, get[string](b, `document.getElementById("`+id+`").getAttribute("aria-label")`), "over the last", id)
		}
		assert.Equal(t, "en", get[string](b, `document.documentElement.lang`))
		assert.Zero(t, get[int](b, `[...document.querySelectorAll("[aria-labelledby]")].filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))?.textContent).length`))
		assert.Equal(t, "status", get[string](b, `document.getElementById("state").getAttribute("role")`))
	})
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			assert.GreaterOrEqual(t, get[float64](b, contrasts), 4.5)
			b.shoot("web-" + scheme)
		})
	}
	t.Run("phone", func(t *testing.T) {
		b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
		b.until(`innerWidth === 360`)
		assert.LessOrEqual(t, get[int](b, `document.documentElement.scrollWidth`), 360, "nothing reaches over the side")
		assert.Empty(t, get[string](b, `[...document.querySelectorAll("dd")].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id).join()`), "each number has room")
		assert.GreaterOrEqual(t, get[float64](b, `document.getElementById("pause").getBoundingClientRect().height`), 24.0, "a target for fingers")
		b.shoot("web-phone")
	})
	b.quiet(srv.URL)
}

// TestThePageOfALargeDaemon stays quick to draw, and says what it leaves out.
func TestThePageOfALargeDaemon(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := &fakeDaemon{load: true, targets: 500, since: time.Now()}
	for i := range 500 {
		d.sessions = append(d.sessions, admin.Session{ID: uint16(i + 1), Initiator: fmt.Sprintf("iqn.2026-01.example:host%d", i), Transport: "tcp", Since: time.Now()})
	}
	srv := httptest.NewServer(Handler(Source{Snapshot: d.snapshot, Events: d.events}))
	defer srv.Close()
	b := open(t, srv.URL+"/")
	b.until(`document.getElementById("luns-more").textContent === "200 of 500 shown"`)
	assert.Equal(t, "200 of 500 shown", b.text("sessions-more"))
	assert.Equal(t, 200, get[int](b, `document.querySelectorAll("#sessions tr").length`))
	b.quiet(srv.URL)
}

// TestThePageOutlivesItsDaemon: it says that there is no answer, and goes on when there is one.
func TestThePageOutlivesItsDaemon(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := &fakeDaemon{load: true, targets: 1, since: time.Now()}
	srv := httptest.NewUnstartedServer(Handler(Source{Snapshot: d.snapshot, Events: d.events}))
	srv.Start()
	defer func() { srv.Close() }()
	b := open(t, srv.URL+"/")
	b.until(`document.getElementById("read-rate").textContent.includes("iB/s")`)
	addr := srv.Listener.Addr().String()
	srv.CloseClientConnections()
	srv.Close()
	b.until(`document.getElementById("state").classList.contains("bad")`)
	assert.Contains(t, b.text("state"), "no answer from iserd")

	again, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	d.set(func() { d.turns, d.since = 0, time.Now().Add(time.Second) })
	srv = httptest.NewUnstartedServer(Handler(Source{Snapshot: d.snapshot, Events: d.events}))
	require.NoError(t, srv.Listener.Close())
	srv.Listener = again
	srv.Start()
	b.until(`!document.getElementById("state").classList.contains("bad")`)
	b.until(`document.querySelectorAll("#events tr").length === 2`)
}
