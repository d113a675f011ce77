package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// clearScreen is what a terminal takes to begin again at its top.
const clearScreen = "\x1b[H\x1b[2J"

func (a *app) statusCmd() *cobra.Command {
	var watch time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what iserd serves, and to whom, on one screen",
		Long:  "Shows portals, targets, logical units and sessions of the iserd on this host. With --watch again and again, with rates.",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.repeat(cmd, watch, func(s, before *admin.Snapshot) error {
				if a.output != "table" {
					return a.show(s, func(t table.Writer) { unitRows(t, s, before) })
				}
				a.printStatus(s, before)
				return nil
			})
		},
	}
	c.Flags().DurationVar(&watch, "watch", 0, "show it anew every `INTERVAL`, until interrupted")
	return a.manages(c)
}

// repeat shows what the daemon is, once, or every interval until interrupted.
func (a *app) repeat(cmd *cobra.Command, interval time.Duration, show func(s, before *admin.Snapshot) error) error {
	var before *admin.Snapshot
	for {
		s := &admin.Snapshot{}
		if err := a.get(cmd, s, "status"); err != nil {
			return err
		}
		if interval > 0 && a.output == "table" && terminal(a.out) {
			fmt.Fprint(a.out, clearScreen)
		}
		if err := show(s, before); err != nil || interval <= 0 {
			return err
		}
		before = s
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

func (a *app) printStatus(s, before *admin.Snapshot) {
	config := "no configuration file"
	if s.Config.File != "" {
		config = "config saved"
	}
	if s.Config.Unsaved {
		config = "unsaved changes"
	}
	var portals []string
	for _, p := range s.Portals {
		portals = append(portals, p.Address+" "+strings.Join(slices.DeleteFunc([]string{"tcp", p.RDMA}, func(s string) bool { return s == "" }), "+"))
	}
	fmt.Fprintf(a.out, "iserd %s  up %s  %s  on %s\n", s.Version, age(s.Time.Sub(s.Since)), config, strings.Join(portals, ", "))
	if s.Config.Trouble != "" {
		fmt.Fprintf(a.out, "TROUBLE: %s\n", s.Config.Trouble)
	}
	for _, w := range s.Config.Warnings {
		fmt.Fprintf(a.out, "warning: %s\n", w)
	}
	t := a.table()
	unitRows(t, s, before)
	t.Render()
	if len(s.Sessions) > 0 {
		t := a.table()
		sessionRows(t, s.Time, s.Sessions)
		t.Render()
	}
}

// unitRows lists logical units, with rates if there is an earlier snapshot, else with sums.
func unitRows(t table.Writer, s, before *admin.Snapshot) {
	t.AppendHeader(table.Row{"TARGET", "LUN", "BACKSTORE", "SIZE", "MODE", "SESSIONS", "READ", "WRITE", "ERR"})
	notes := map[string]string{}
	for _, b := range s.Backstores {
		if b.Volatile {
			notes[b.Name] = " (lost at exit)"
		} else if b.WriteCache {
			notes[b.Name] = " (write cache)"
		}
		notes[b.Name] = b.Type + " " + b.Name + notes[b.Name]
	}
	for _, target := range s.Targets {
		name := target.Name
		if !target.Enabled {
			name += " (disabled)"
		}
		if len(target.LUNs) == 0 {
			t.AppendRow(table.Row{name, "-", "", "", "", target.Sessions, "", "", ""})
		}
		for _, l := range target.LUNs {
			mode := "rw"
			if l.ReadOnly {
				mode = "ro"
			}
			read, written := volumes(s, before, target.Name, l)
			t.AppendRow(table.Row{name, l.Number, notes[l.Backstore], humanize.IBytes(uint64(l.SizeBytes)), mode, target.Sessions, read, written, l.Errors})
		}
	}
}

// volumes is what has been read and written of a unit, in all or by the second.
func volumes(s, before *admin.Snapshot, target string, l admin.LUN) (read, written string) {
	if before == nil {
		return humanize.IBytes(l.ReadBytes), humanize.IBytes(l.WrittenBytes)
	}
	seconds := s.Time.Sub(before.Time).Seconds()
	for _, t := range before.Targets {
		for _, o := range t.LUNs {
			if t.Name == target && o.Number == l.Number && l.ReadBytes >= o.ReadBytes && l.WrittenBytes >= o.WrittenBytes && seconds > 0 {
				rate := func(n uint64) string { return humanize.IBytes(uint64(float64(n)/seconds)) + "/s" }
				return rate(l.ReadBytes - o.ReadBytes), rate(l.WrittenBytes - o.WrittenBytes)
			}
		}
	}
	return "", ""
}

func sessionRows(t table.Writer, now time.Time, list []admin.Session) {
	t.AppendHeader(table.Row{"SESSION", "INITIATOR", "FROM", "OVER", "AGE", "TARGET", "COMMANDS", "ERR", "KEYS"})
	for _, s := range list {
		keys := fmt.Sprintf("ImmediateData=%s FirstBurst=%s MaxBurst=%s", s.Keys["ImmediateData"], s.Keys["FirstBurstLength"], s.Keys["MaxBurstLength"])
		t.AppendRow(table.Row{
			fmt.Sprintf("0x%04x", s.ID), s.Initiator, s.Remote, s.Transport, age(now.Sub(s.Since)), cmp.Or(s.Target, "(discovery)"), s.Commands, s.Errors, keys,
		})
	}
}

// age is a duration in its two largest units.
func age(d time.Duration) string {
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
}

func (a *app) statsCmd() *cobra.Command {
	var watch time.Duration
	c := &cobra.Command{
		Use:   "stats [target|lun|session|qp]",
		Short: "Show iserd's counters",
		Long:  "Shows the counters of all commands, or of each target, logical unit, session, or queue pair of our own RoCE.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !slices.Contains([]string{"target", "lun", "session", "qp"}, args[0]) {
				return usage(fmt.Errorf("want target, lun, session, qp, or nothing"))
			}
			return nil
		},
		ValidArgs: []string{"target", "lun", "session", "qp"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.repeat(cmd, watch, func(s, _ *admin.Snapshot) error { return a.printStats(s, strings.Join(args, "")) })
		},
	}
	c.Flags().DurationVar(&watch, "watch", 0, "show it anew every `INTERVAL`, until interrupted")
	return a.manages(c)
}

func (a *app) printStats(s *admin.Snapshot, what string) error {
	switch what {
	case "target", "lun":
		return a.show(s.Targets, func(t table.Writer) {
			t.AppendHeader(table.Row{"TARGET", "LUN", "COMMANDS", "READ", "WRITTEN", "ERR"})
			for _, g := range s.Targets {
				var sum admin.LUN
				for _, l := range g.LUNs {
					if what == "lun" {
						t.AppendRow(table.Row{g.Name, l.Number, l.Commands, l.ReadBytes, l.WrittenBytes, l.Errors})
					}
					sum.Commands, sum.ReadBytes = sum.Commands+l.Commands, sum.ReadBytes+l.ReadBytes
					sum.WrittenBytes, sum.Errors = sum.WrittenBytes+l.WrittenBytes, sum.Errors+l.Errors
				}
				if what == "target" {
					t.AppendRow(table.Row{g.Name, len(g.LUNs), sum.Commands, sum.ReadBytes, sum.WrittenBytes, sum.Errors})
				}
			}
		})
	case "session":
		return a.show(s.Sessions, func(t table.Writer) { sessionCounters(t, s.Sessions) })
	case "qp":
		return a.show(s.Providers, func(t table.Writer) { queuePairRows(t, s) })
	}
	return a.show(s.Stats, func(t table.Writer) {
		t.AppendHeader(table.Row{"OP", "STATUS", "COMMANDS"})
		for _, c := range s.Stats.Commands {
			t.AppendRow(table.Row{c.Op, c.Status, c.Count})
		}
	})
}

func sessionCounters(t table.Writer, list []admin.Session) {
	t.AppendHeader(table.Row{"SESSION", "INITIATOR", "COMMANDS", "IN FLIGHT", "READ", "WRITTEN", "ERR", "REJECTS", "DROPPED"})
	for _, s := range list {
		t.AppendRow(table.Row{fmt.Sprintf("0x%04x", s.ID), s.Initiator, s.Commands, s.InFlight, s.ReadBytes, s.WrittenBytes, s.Errors, s.Rejects, s.Dropped})
	}
}

// queuePairRows lists counters of each provider and of the queue pair of each session, those that are not zero.
func queuePairRows(t table.Writer, s *admin.Snapshot) {
	t.AppendHeader(table.Row{"OF", "COUNTER", "VALUE"})
	add := func(of string, counters map[string]uint64) {
		for _, name := range slices.Sorted(maps.Keys(counters)) {
			if counters[name] > 0 {
				t.AppendRow(table.Row{of, name, counters[name]})
			}
		}
	}
	for _, p := range s.Providers {
		add(p.Name+" "+p.Used, p.Counters)
	}
	for _, ses := range s.Sessions {
		if ses.QueuePair != nil {
			add(fmt.Sprintf("session 0x%04x QP 0x%06x", ses.ID, ses.QueuePair.Number), ses.QueuePair.Counters)
		}
	}
}
