package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// codeProtocol is the exit code for an answer that makes no sense.
const codeProtocol = 9

// A Client speaks to a daemon's admin socket. Its methods may be called from any goroutine. Errors are *Error.
type Client struct {
	socket string
	http   http.Client
}

// NewClient makes a client of the daemon at a socket.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	return c
}

// Path makes a path of the API of segments, which may hold anything.
func Path(segments ...string) string {
	var escaped []string
	for _, s := range segments {
		escaped = append(escaped, url.PathEscape(s))
	}
	return fmt.Sprintf("/v%d/%s", API, strings.Join(escaped, "/"))
}

// Query is a path with options.
func (o Options) Query(path string) string {
	q := url.Values{}
	for key, on := range map[string]bool{"dry_run": o.DryRun, "force": o.Force, "save": o.Save} {
		if on {
			q.Set(key, "1")
		}
	}
	switch {
	case len(q) == 0:
		return path
	case strings.Contains(path, "?"):
		return path + "&" + q.Encode()
	}
	return path + "?" + q.Encode()
}

// Do sends a request and reads its answer into to, unless that is nil. A nil body is none.
func (c *Client) Do(ctx context.Context, method, path string, body, to any) error {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return &Error{Message: err.Error(), What: method + " " + path, Code: CodeOther}
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://iserd"+path, in)
	if err != nil {
		return &Error{Message: err.Error(), What: method + " " + path, Code: CodeUsage}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.cannotConnect(err)
	}
	defer resp.Body.Close()
	if err := c.version(resp.Header.Get(Header)); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponse))
	if err != nil {
		return c.cannotConnect(err)
	}
	if resp.StatusCode != http.StatusOK {
		var e Error
		if json.Unmarshal(b, &e) != nil || e.Message == "" {
			return &Error{Message: resp.Status, What: method + " " + path, Code: codeProtocol}
		}
		return &e
	}
	if to == nil {
		return nil
	}
	if err := json.Unmarshal(b, to); err != nil {
		return &Error{Message: "the answer cannot be read: " + err.Error(), What: method + " " + path, Code: codeProtocol}
	}
	return nil
}

// version holds a daemon's version of the API against ours.
func (c *Client) version(s string) error {
	if s == strconv.Itoa(API) {
		return nil
	}
	e := &Error{What: "manage iserd at " + c.socket, Code: codeProtocol}
	if n, err := strconv.Atoi(s); err == nil {
		e.Message = fmt.Sprintf("it speaks version %d of the admin API, this iser version %d", n, API)
		e.Todo = "use the iser that came with that iserd"
		return e
	}
	e.Message, e.Todo = "what answers there is no iserd", "--socket or "+SocketVariable+" says where its socket is"
	return e
}

// cannotConnect says why there is no answer, and what to do about it.
func (c *Client) cannotConnect(err error) error {
	var cause error = err
	if u := new(url.Error); errors.As(err, &u) {
		cause = u.Err
	}
	e := &Error{Message: cause.Error(), What: "reach iserd at " + c.socket, Code: CodeConnect}
	where := "; --socket or " + SocketVariable + " says where its socket is"
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Message, e.Todo, e.Code = "no answer in time", "--timeout waits longer; what was asked for may still be done: iser status tells", CodeTimeout
	case errors.Is(err, context.Canceled):
		e.Message, e.Code = "interrupted", CodeOther
	case errors.Is(err, fs.ErrNotExist):
		e.Message, e.Todo = "there is no socket", "is it running? systemctl status iserd tells"+where
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message, e.Todo = "nobody listens", "it has ended; systemctl start iserd starts it"+where
	case errors.Is(err, fs.ErrPermission):
		e.Message, e.Todo, e.Code = "permission denied", "be root or in the group of the socket (usermod -aG iserd USER, and log in again)", CodeRefused
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		e.Todo, e.Code = "the path of a socket has at most 107 bytes", CodeUsage
	}
	return e
}
