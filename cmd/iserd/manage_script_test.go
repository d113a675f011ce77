package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/rogpeppe/go-internal/testscript"
)

// withPorts puts the script's ports in place of PORT and BUSY in its configuration files.
func withPorts(e *testscript.Env) error {
	files, err := filepath.Glob(filepath.Join(e.WorkDir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		r := strings.NewReplacer(":PORT\"", ":"+e.Getenv("PORT")+"\"", ":BUSY\"", ":"+e.Getenv("BUSY")+"\"")
		if err := os.WriteFile(f, []byte(r.Replace(string(b))), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// freePort is a port that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return strconv.Itoa(port), l.Close()
}

// raw asks the admin socket as curl would.
func raw(ts *testscript.TestScript, _ bool, args []string) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ts.Getenv("ISERD_SOCKET"))
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://iserd" + args[0])
	ts.Check(err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s", b)
}

// hangup sends SIGHUP to the daemon.
func hangup(ts *testscript.TestScript, _ bool, _ []string) {
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(syscall.SIGHUP))
	}
}

// happens waits for an event whose message matches.
func happens(ts *testscript.TestScript, _ bool, args []string) {
	c := admin.NewClient(ts.Getenv("ISERD_SOCKET"))
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	for next := uint64(0); ; {
		var e admin.Events
		ts.Check(c.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/events?wait=1&since=%d", next), nil, &e))
		for _, one := range e.Events {
			if strings.Contains(one.Message, args[0]) {
				return
			}
		}
		next = e.Next
	}
}

// hold logs in by TCP and stays, until the script ends or the session does.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	s, err := initiator.Open(ctx, &tcp.Dialer{}, args[0], args[1], initiator.Options{InitiatorName: "iqn.2026-01.example:holder"})
	ts.Check(err)
	ts.Defer(func() { _ = s.Close() })
}
