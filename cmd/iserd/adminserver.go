package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/durable"
	"github.com/goiser/goiser/cmd/events"
	"github.com/goiser/goiser/conf"
	"github.com/sirupsen/logrus"
)

// Times of the admin socket, and how many requests it serves at once. A change may take applyLimit, and once more to be
// taken back.
const (
	adminHeaderTimeout = 5 * time.Second
	adminReadTimeout   = 30 * time.Second
	adminIdleTimeout   = 2 * time.Minute
	adminMaxHeader     = 16 << 10 // bytes
	adminRequests      = 64
	socketMode         = 0o660
	adminGroup         = "iserd" // that the socket belongs to, where there is such a group
)

// An adminServer serves the admin API on a Unix socket.
type adminServer struct {
	m     *manager
	log   logrus.FieldLogger
	logs  *logLevels
	trace *tracer
	ring  *events.Ring
	slots chan struct{} // requests in progress
	waits chan struct{} // of those, who wait for events: they are others, so that they hold up nobody
	http  http.Server
	path  string
	lock  io.Closer
	done  chan struct{}
}

// listenAdmin makes the socket. What a daemon that has died has left is taken away; the lock beside it tells. The socket
// has its permissions before it has its name.
func listenAdmin(path, group string) (_ net.Listener, lock io.Closer, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, nil, err
	}
	held, err := durable.Lock(path + ".lock")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = held.Close()
		}
	}()
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, nil, fmt.Errorf("%s is there, and no socket", path)
	}
	fresh := path + durable.Suffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fresh})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // it has another name by then
	if err = giveAway(fresh, group); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return l, held, nil
}

// giveAway sets the socket's permissions and group. The default group need not be there.
func giveAway(path, group string) error {
	if err := os.Chmod(path, socketMode); err != nil {
		return err
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		if group == adminGroup {
			return nil
		}
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	if err := os.Chown(path, -1, gid); err != nil && group != adminGroup {
		return err
	}
	return nil
}

// serveAdmin begins to serve.
func serveAdmin(path, group string, m *manager, log logrus.FieldLogger, logs *logLevels, ring *events.Ring, t *tracer) (*adminServer, error) {
	if filepath.Base(filepath.Dir(path)) == "iserd" { // of ours alone; systemd makes it, other ways to start do not
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("admin socket %s: %w", path, err)
		}
	}
	l, lock, err := listenAdmin(path, group)
	if err != nil {
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	a := &adminServer{m: m, log: log, logs: logs, ring: ring, trace: t, slots: make(chan struct{}, adminRequests), waits: make(chan struct{}, adminRequests), path: path, lock: lock, done: make(chan struct{})}
	a.http = http.Server{
		Handler: a.handler(), ReadHeaderTimeout: adminHeaderTimeout, ReadTimeout: adminReadTimeout, IdleTimeout: adminIdleTimeout,
		MaxHeaderBytes: adminMaxHeader, ErrorLog: nil,
	}
	go func() {
		defer close(a.done)
		_ = a.http.Serve(l)
	}()
	return a, nil
}

// close ends the socket; requests in progress are waited for until ctx ends.
func (a *adminServer) close(ctx context.Context) error {
	err := os.Remove(a.path)
	if serr := a.http.Shutdown(ctx); serr != nil {
		err = errors.Join(err, a.http.Close())
	}
	<-a.done
	return errors.Join(err, a.lock.Close())
}

// handler puts around all requests what all have in common.
func (a *adminServer) handler() http.Handler {
	mux := http.NewServeMux()
	a.routes(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, unknownPath(r)) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(admin.Header, strconv.Itoa(admin.API))
		slots := a.slots
		if r.URL.Path == eventsPath {
			slots = a.waits
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			a.fail(w, r, &admin.Error{Message: fmt.Sprintf("%d requests at once", adminRequests), What: r.URL.Path, Todo: "try again", Code: admin.CodeOther})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, admin.MaxRequest)
		mux.ServeHTTP(w, r)
	})
}

// unknownPath tells an iser of another version from a mistyped path.
func unknownPath(r *http.Request) error {
	head, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	n, err := strconv.Atoi(strings.TrimPrefix(head, "v"))
	if strings.HasPrefix(head, "v") && err == nil && n != admin.API {
		return &admin.Error{
			Message: fmt.Sprintf("this iserd (%s) speaks version %d of the admin API, and was asked in version %d", version, admin.API, n),
			What:    r.URL.Path, Todo: "use the iser that came with this iserd", Code: admin.CodeOther,
		}
	}
	return &admin.Error{
		Message: fmt.Sprintf("this iserd (%s) has no such request", version), What: r.Method + " " + r.URL.Path,
		Todo: "if iser is newer than iserd, restart iserd with the same version", Code: admin.CodeNotFound,
	}
}

// fail answers with an error.
func (a *adminServer) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := toError(err)
	status := map[int]int{
		admin.CodeUsage: http.StatusBadRequest, admin.CodeNotFound: http.StatusNotFound, admin.CodeDiffers: http.StatusConflict,
		admin.CodeInUse: http.StatusConflict, admin.CodeRefused: http.StatusForbidden, admin.CodeTimeout: http.StatusGatewayTimeout,
	}[e.Code]
	if status == 0 {
		status = http.StatusUnprocessableEntity
	}
	if r.Method != http.MethodGet {
		a.log.WithFields(logrus.Fields{"event": "refused", "err": e}).Infof("admin: %s %s", r.Method, r.URL.Path)
	}
	answer(w, status, e)
}

// toError makes what, why and what to do of an error, with its exit code.
func toError(err error) *admin.Error {
	var e *admin.Error
	if errors.As(err, &e) {
		return e
	}
	e = &admin.Error{Message: err.Error(), Code: admin.CodeOther}
	var used *inUseError
	var shrink *shrinkError
	var broken *brokenError
	var wrong conf.Errors
	switch {
	case errors.As(err, &broken):
		e.Todo = "iser status shows what runs now; restart iserd to have what its file says"
	case errors.As(err, &used):
		e.Code, e.Todo = admin.CodeInUse, "--force does it all the same"
	case errors.As(err, &shrink):
		e.Code, e.Todo = admin.CodeRefused, "iser backstore resize NAME SIZE --force drops it"
	case errors.Is(err, errFixed):
		e.Todo = "save the configuration with it, and restart iserd"
	case errors.Is(err, errForeign):
		e.Todo = "iser config diff shows the difference, iser config apply takes the file, --force writes over it"
	case errors.Is(err, errNoFile):
		e.Todo = "iser config show prints what runs; start iserd with --config FILE"
	case errors.As(err, &wrong):
		e.Message, e.Todo = wrong.Error(), "nothing has been changed"
	case noSpace(err):
		e.Todo = "the old file is whole; make room, and try again"
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, backstore.ErrInUse):
		e.Code, e.Todo = admin.CodeInUse, "nothing has been changed; end what uses it, or take another"
	case errors.Is(err, fs.ErrPermission):
		e.Todo = "nothing has been changed; give iserd's user the right to it"
	case errors.Is(err, fs.ErrNotExist):
		e.Todo = "nothing has been changed"
	case errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Todo = admin.CodeTimeout, "what had been changed was changed back; a store does not answer"
	}
	return e
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may have gone
}

// take reads a request's body. A field that is not known is an error: it would be something that is not done.
func take[T any](r *http.Request) (v T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err = d.Decode(&v)
	if errors.Is(err, io.EOF) {
		return v, nil // an empty body is an empty request
	}
	if err == nil && d.More() {
		err = errors.New("something follows the request")
	}
	if err != nil {
		return v, badRequest(r.Method+" "+r.URL.Path, err.Error(), "if iser is newer than iserd, restart iserd with the same version")
	}
	return v, nil
}

// optionsOf reads the query.
func optionsOf(r *http.Request) options {
	on := func(key string) bool { return r.URL.Query().Get(key) == "1" }
	return options{dryRun: on("dry_run"), force: on("force"), shrink: on("force"), save: on("save")}
}
