package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"iserd": main})
}

// readyLimit is how long a daemon may take to say that it is ready, on a busy machine.
const readyLimit = 20 * time.Second

type notifyKey struct{}

// TestScripts runs testdata/script with the real command. PORT and PORT2 are free, BUSY is taken, also in
// configuration files; OWN is an address of this script alone, for what has one port an address only (RoCE).
//
//	ready             waits for the daemon's sd_notify READY
//	notified STATE    waits for this word of the daemon to sd_notify
//	terminate         sends SIGTERM to the daemon
//	disk ADDR IQN     logs in by TCP, writes, reads, flushes, logs out
//	disk ADDR IQN ro  the same without writing
//	disk ADDR IQN rw USER SECRET [MUTUALUSER SECRET]    writing, by CHAP
//	iser ARGS         runs the iser command
//	iserfails N ARGS  runs it, and it must end with exit code N
//	hold ADDR IQN     logs in by TCP as iqn.2026-01.example:holder, and stays
//	hangup            sends SIGHUP to the daemon
//	happens TEXT      waits for an event with this text
//	raw PATH          asks the daemon's admin socket
//	register ADDR IQN, registered ADDR IQN, damage DIR: see reserve_script_test.go
func TestScripts(t *testing.T) {
	build := buildIser(t.TempDir())
	var scripts atomic.Int32
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			if err := free.Close(); err != nil {
				return err
			}
			busy, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			e.Defer(func() { _ = busy.Close() })
			socket := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(e.WorkDir, "notify")}
			notify, err := net.ListenUnixgram("unixgram", socket)
			if err != nil {
				return err
			}
			e.Defer(func() { _ = notify.Close() })
			e.Values[notifyKey{}] = words(notify)
			e.Setenv("NOTIFY_SOCKET", socket.Name)
			e.Setenv("ISERD_SOCKET", filepath.Join(e.WorkDir, "admin.sock"))
			e.Setenv("OWN", rdmatest.Address(int(scripts.Add(1))).String()) // they run at the same time
			e.Setenv("PORT", fmt.Sprint(free.Addr().(*net.TCPAddr).Port))
			e.Setenv("BUSY", fmt.Sprint(busy.Addr().(*net.TCPAddr).Port))
			port2, err := freePort()
			if err != nil {
				return err
			}
			e.Setenv("PORT2", port2)
			return withPorts(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready":      ready,
			"notified":   notified,
			"terminate":  terminate,
			"disk":       disk,
			"register":   register,
			"registered": registered,
			"damage":     damage,
			"iser":       runIser(build),
			"iserfails":  iserFails(build),
			"raw":        raw,
			"hangup":     hangup,
			"hold":       hold,
			"happens":    happens,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}

func ready(ts *testscript.TestScript, neg bool, _ []string) { notified(ts, neg, []string{"READY=1"}) }

// words reads all that is told to systemd: a daemon must not wait for us.
func words(c *net.UnixConn) <-chan string {
	list := make(chan string, 1024) // more than a script makes a daemon say
	go func() {
		defer close(list)
		b := make([]byte, 1024)
		for {
			n, err := c.Read(b)
			if err != nil {
				return // the script has ended
			}
			list <- string(b[:n])
		}
	}()
	return list
}

func notified(ts *testscript.TestScript, _ bool, args []string) {
	late := time.After(readyLimit)
	for {
		select {
		case word := <-ts.Value(notifyKey{}).(<-chan string):
			if first, _, _ := strings.Cut(word, "\n"); first == args[0] {
				return // what came before is of an earlier daemon
			}
		case <-late:
			ts.Fatalf("iserd has not told systemd %s", args[0])
		}
	}
}

func terminate(ts *testscript.TestScript, neg bool, args []string) {
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(syscall.SIGTERM))
	}
}

func disk(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	s, err := initiator.Open(ctx, &tcp.Dialer{}, args[0], args[1], initiator.Options{
		InitiatorName: "iqn.2026-01.example:script", CHAP: credentials(ts, args[min(len(args), 3):]),
	})
	if neg {
		if err == nil {
			_ = s.Close()
			ts.Fatalf("logged in")
		}
		return
	}
	ts.Check(err)
	d, err := s.Disk(ctx, 0)
	ts.Check(err)
	if len(args) < 3 || args[2] == "rw" {
		ts.Check(d.WriteAt(ctx, pattern, 4096))
		ts.Check(d.Flush(ctx))
	} else if !d.ReadOnly() {
		ts.Fatalf("not read-only")
	}
	got := make([]byte, len(pattern))
	ts.Check(d.ReadAt(ctx, got, 4096))
	if !bytes.Equal(got, pattern) {
		ts.Fatalf("read other bytes than were written")
	}
	ts.Check(s.Close())
}

// credentials are a user with its secret, and perhaps the target's.
func credentials(ts *testscript.TestScript, args []string) *chap.Credentials {
	if len(args) == 0 {
		return nil
	}
	var c chap.Credentials
	var err error
	c.User = args[0]
	c.Secret, err = chap.NewSecret(args[1])
	ts.Check(err)
	if len(args) > 2 {
		c.MutualUser = args[2]
		c.MutualSecret, err = chap.NewSecret(args[3])
		ts.Check(err)
	}
	return &c
}

// pattern is 16 blocks of text.
var pattern = bytes.Repeat([]byte("what was written"), 512)
