package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

func (a *app) sessionCmd() *cobra.Command {
	return a.changes(group("session", "Manage the sessions of initiators",
		verb("list", "List the sessions", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
			var list []admin.Session
			if err := a.get(cmd, &list, "sessions"); err != nil {
				return err
			}
			return a.show(list, func(t table.Writer) { sessionRows(t, time.Now(), list) })
		}),
		verb("show ID", "Show a session: its keys, counters, and queue pair", 1, "one ID", func(cmd *cobra.Command, args []string) error {
			var s admin.Session
			if err := a.get(cmd, &s, "sessions", args[0]); err != nil {
				return err
			}
			return a.show(s, func(t table.Writer) { sessionDetail(t, &s) })
		}),
		verb("close ID", "Close a session; its initiator may log in again", 1, "one ID", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, http.MethodDelete, nil, "sessions", args[0])
		}),
	))
}

func sessionDetail(t table.Writer, s *admin.Session) {
	t.AppendHeader(table.Row{"KEY", "VALUE"})
	row := func(k string, v any) { t.AppendRow(table.Row{k, v}) }
	row("session", fmt.Sprintf("0x%04x", s.ID))
	row("initiator", s.Initiator)
	row("target", s.Target)
	row("transport", s.Transport)
	row("from", s.Remote)
	row("portal", s.Portal)
	row("connections", s.Connections)
	row("age", age(time.Since(s.Since)))
	for _, k := range slices.Sorted(maps.Keys(s.Keys)) {
		row(k, s.Keys[k])
	}
	seconds := max(time.Since(s.Since).Seconds(), 1)
	row("commands", fmt.Sprintf("%d (%.0f/s)", s.Commands, float64(s.Commands)/seconds))
	row("read bytes", fmt.Sprintf("%d (%.1f MiB/s)", s.ReadBytes, float64(s.ReadBytes)/seconds/(1<<20)))
	row("written bytes", fmt.Sprintf("%d (%.1f MiB/s)", s.WrittenBytes, float64(s.WrittenBytes)/seconds/(1<<20)))
	row("in flight", s.InFlight)
	row("errors", s.Errors)
	row("rejects", s.Rejects)
	row("dropped", s.Dropped)
	if q := s.QueuePair; q != nil {
		row("queue pair", fmt.Sprintf("0x%06x", q.Number))
		for _, k := range slices.Sorted(maps.Keys(q.Counters)) {
			row("  "+k, q.Counters[k])
		}
	}
}

// runningConfigCmds are the commands about the configuration of a running iserd.
func (a *app) runningConfigCmds() []*cobra.Command {
	text := func(path ...string) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			var v admin.ConfigText
			if err := a.get(cmd, &v, path...); err != nil {
				return err
			}
			if a.output != "table" {
				return a.show(v, nil)
			}
			_, err := io.WriteString(a.out, v.Text)
			return err
		}
	}
	post := func(body any, path ...string) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error { return a.alter(cmd, http.MethodPost, body, path...) }
	}
	apply := verb("apply FILE", "Make a whole configuration run: only what differs is touched; - is standard input", 1, "one FILE", a.applyConfig)
	rollback := verb("rollback N", "Make what was saved N times ago run", 1, "one N", func(cmd *cobra.Command, args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return usage(fmt.Errorf("%q: want a number of iser config history", args[0]))
		}
		return a.alter(cmd, http.MethodPost, admin.RollbackRequest{N: n}, "config", "rollback")
	})
	history := verb("history", "List what was saved before; the last ten are kept", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
		var list []admin.HistoryEntry
		if err := a.get(cmd, &list, "config", "history"); err != nil {
			return err
		}
		return a.show(list, func(t table.Writer) {
			t.AppendHeader(table.Row{"N", "SAVED", "FILE"})
			for _, e := range list {
				t.AppendRow(table.Row{e.N, e.Time.Format(time.RFC3339), e.File})
			}
		})
	})
	return []*cobra.Command{
		a.manages(verb("show", "Print the running configuration; secrets are hidden", 0, "no arguments", text("config"))),
		a.manages(verb("diff", "Print what runs and is not in the file (+), and what is in the file and does not run (-)", 0, "no arguments", text("config", "diff"))),
		a.manages(history),
		a.changes(apply),
		a.changes(verb("reload", "Make iserd's file run, as SIGHUP does", 0, "no arguments", post(nil, "config", "reload"))),
		a.changes(verb("save", "Write the running configuration to iserd's file; its comments are not kept, its previous text is (config history)", 0, "no arguments", post(nil, "config", "save"))),
		a.changes(rollback),
	}
}

func (a *app) applyConfig(cmd *cobra.Command, args []string) error {
	f := os.Stdin
	if args[0] != "-" {
		var err error
		if f, err = os.Open(args[0]); err != nil {
			return coded(exitNotFound, err)
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, admin.MaxRequest))
	if err != nil {
		return err
	}
	return a.alter(cmd, http.MethodPost, admin.ApplyRequest{Name: args[0], YAML: string(b)}, "config", "apply")
}

func (a *app) eventsCmd() *cobra.Command {
	var follow bool
	var since time.Duration
	c := verb("events", "Show what has happened: logins, sessions lost, changes, failures", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
		next, wait := uint64(0), ""
		after := time.Time{}
		if since > 0 {
			after = time.Now().Add(-since)
		}
		for {
			var e admin.Events
			path := admin.Path("events") + "?since=" + url.QueryEscape(strconv.FormatUint(next, 10)) + wait
			if err := a.waitFor(cmd, path, follow, &e); err != nil {
				if cmd.Context().Err() != nil {
					return nil // interrupted, as it ends
				}
				return err
			}
			if e.Missed > 0 && next > 0 {
				a.note("%d events are missing here: they came faster than they were read", e.Missed)
			}
			if err := a.listEvents(e.Events, after); err != nil || !follow {
				return err
			}
			next, wait = e.Next, "&wait=1"
		}
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	c.Flags().DurationVar(&since, "since", 0, "only what is not older than this `DURATION`")
	return a.manages(c)
}

// waitFor asks, without a limit if the answer may be a while in coming.
func (a *app) waitFor(cmd *cobra.Command, path string, follow bool, to any) error {
	if !follow {
		return a.ask(cmd, http.MethodGet, path, nil, to)
	}
	socket := a.manage.socket
	if socket == "" {
		socket = admin.Socket()
	}
	return admin.NewClient(socket).Do(cmd.Context(), http.MethodGet, path, nil, to)
}

func (a *app) listEvents(list []admin.Event, after time.Time) error {
	list = slices.DeleteFunc(list, func(e admin.Event) bool { return e.Time.Before(after) })
	if a.output == "json" { // an object a line, for those who follow
		for _, e := range list {
			if err := json.NewEncoder(a.out).Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	if a.output != "table" {
		return a.show(list, func(t table.Writer) {
			t.AppendHeader(table.Row{"TIME", "LEVEL", "KIND", "MESSAGE"})
			for _, e := range list {
				t.AppendRow(table.Row{e.Time.Format(time.RFC3339), e.Level, e.Kind, e.Message})
			}
		})
	}
	for _, e := range list {
		var about []string
		for _, f := range [][2]string{{"session", e.Session}, {"initiator", e.Initiator}, {"target", e.Target}, {"lun", e.LUN}, {"err", e.Error}} {
			if f[1] != "" {
				about = append(about, f[0]+"="+strconv.Quote(f[1]))
			}
		}
		fmt.Fprintln(a.out, strings.TrimSpace(fmt.Sprintf("%s %-7s %-15s %s %s", e.Time.Format(time.RFC3339), e.Level, e.Kind, e.Message, strings.Join(about, " "))))
	}
	return nil
}

func (a *app) logCmd() *cobra.Command {
	return a.manages(&cobra.Command{
		Use: "log [SUBSYSTEM=LEVEL...]", Short: "Show or set iserd's log levels, until it is started again",
		Example: "  iser log target=debug",
		Args:    func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := settings(args)
			if err != nil {
				return err
			}
			levels := admin.LogLevels{}
			if len(m) > 0 {
				err = a.ask(cmd, http.MethodPut, admin.Path("log"), admin.LogLevels(m), nil)
			}
			if err == nil {
				err = a.get(cmd, &levels, "log")
			}
			if err != nil {
				return err
			}
			return a.show(levels, func(t table.Writer) {
				t.AppendHeader(table.Row{"SUBSYSTEM", "LEVEL"})
				for _, k := range slices.Sorted(maps.Keys(levels)) {
					t.AppendRow(table.Row{k, levels[k]})
				}
			})
		},
	})
}

// captureCmds start and stop a capture of packets by a running iserd.
func (a *app) captureCmds() []*cobra.Command {
	var r admin.TraceRequest
	print := func(cmd *cobra.Command, body any, word string) error {
		var v admin.Trace
		if err := a.ask(cmd, http.MethodPost, admin.Path("trace", word), body, &v); err != nil {
			return err
		}
		return a.show(v, func(t table.Writer) {
			t.AppendHeader(table.Row{"RUNNING", "FILE", "NOTE"})
			t.AppendRow(table.Row{v.Running, v.File, v.Note})
		})
	}
	start := verb("start", "Have iserd write the packets of our own RoCE to a file, as pcapng", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
		if r.File == "" {
			return usage(fmt.Errorf("give the file with --out"))
		}
		var err error
		if r.File, err = filepath.Abs(r.File); err != nil {
			return err
		}
		return print(cmd, r, "start")
	})
	start.Flags().StringVar(&r.File, "out", "", "`FILE` on iserd's host, which must not be there yet")
	start.Flags().StringVar(&r.Limit, "limit", "", "stop the file at this `SIZE` (default 1GiB; 0: never)")
	stop := verb("stop", "End the capture", 0, "no arguments", func(cmd *cobra.Command, _ []string) error { return print(cmd, nil, "stop") })
	return []*cobra.Command{a.manages(start), a.manages(stop)}
}
