package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// changeTimeout is how long a request may take unless --timeout says: a change may wait for stores, and be taken back.
const changeTimeout = 45 * time.Second

// manageFlags are those of the commands that manage a running iserd.
type manageFlags struct {
	socket string
	o      admin.Options
	schema int
}

// forAdmin marks commands that manage a running iserd: they know two more forms of output.
const forAdmin = "admin"

// manages gives a command, and those below it, the flags to reach a daemon.
func (a *app) manages(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.StringVar(&a.manage.socket, "socket", "", "`PATH` of iserd's admin socket (default $ISERD_SOCKET, else "+admin.DefaultSocket+")")
	f.IntVar(&a.manage.schema, "json-version", admin.API, "`VERSION` of what json and yaml print")
	c.Annotations = map[string]string{forAdmin: ""}
	return c
}

// changes gives a command that changes something its flags too.
func (a *app) changes(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.BoolVar(&a.manage.o.DryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&a.manage.o.Save, "save", false, "save the configuration afterwards")
	f.BoolVar(&a.manage.o.Force, "force", false, "also if sessions lose what they use")
	return a.manages(c)
}

// managing reports whether a command, or one above it, manages a daemon.
func managing(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if _, ok := c.Annotations[forAdmin]; ok {
			return true
		}
	}
	return false
}

// checkManage checks the flags of such a command.
func (a *app) checkManage() error {
	if !slices.Contains([]string{"table", "json", "yaml", "csv"}, a.output) {
		return usage(fmt.Errorf("--output %q: want table, json, yaml or csv", a.output))
	}
	if a.manage.schema != admin.API {
		return usage(fmt.Errorf("--json-version %d: this iser prints version %d", a.manage.schema, admin.API))
	}
	return nil
}

// ask sends a request to the daemon.
func (a *app) ask(cmd *cobra.Command, method, path string, body, to any) error {
	limit := changeTimeout
	if cmd.Flags().Changed("timeout") {
		limit = a.timeout
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	socket := a.manage.socket
	if socket == "" {
		socket = admin.Socket()
	}
	return admin.NewClient(strings.TrimPrefix(socket, "unix:")).Do(ctx, method, path, body, to)
}

// get asks for something.
func (a *app) get(cmd *cobra.Command, to any, segments ...string) error {
	return a.ask(cmd, http.MethodGet, admin.Path(segments...), nil, to)
}

// alter asks for a change and prints what has come of it.
func (a *app) alter(cmd *cobra.Command, method string, body any, segments ...string) error {
	if a.output == "csv" { // before anything is done
		return usage(errNoTable)
	}
	var r admin.Result
	if err := a.ask(cmd, method, a.manage.o.Query(admin.Path(segments...)), body, &r); err != nil {
		return err
	}
	return a.printResult(&r)
}

func (a *app) printResult(r *admin.Result) error {
	if a.output != "table" {
		return a.show(r, nil)
	}
	word := ""
	if !r.Applied {
		word = "would "
	}
	for _, s := range r.Steps {
		fmt.Fprintf(a.out, "%s%s\n", word, s.Action)
		for _, ses := range s.Sessions {
			what := "loses a disk"
			if s.Closes {
				what = "closed"
			}
			fmt.Fprintf(a.out, "  session %s: %s\n", ses, what)
		}
	}
	switch {
	case r.Saved:
		a.note("saved")
	case len(r.Steps) == 0:
		a.note("nothing to do")
	}
	if r.Unsaved && !a.manage.o.DryRun {
		a.note("not saved yet: iser config save keeps it through a restart")
	}
	return nil
}

var errNoTable = errors.New("--output csv: this answer is no table; want json or yaml")

// show prints an answer: as it is, or as the table that rows makes.
func (a *app) show(v any, rows func(table.Writer)) error {
	switch a.output {
	case "json":
		return a.printJSON(v)
	case "yaml":
		b, err := json.Marshal(v)
		if err == nil {
			b, err = yaml.JSONToYAML(b)
		}
		if err == nil {
			_, err = a.out.Write(b)
		}
		return err
	}
	t := a.table()
	t.ResetHeaders()
	if rows == nil {
		return usage(errNoTable)
	}
	rows(t)
	if a.output == "csv" {
		t.RenderCSV()
		return nil
	}
	t.Render()
	return nil
}

// verb makes a command of exact arguments.
func verb(use, short string, n int, what string, run func(*cobra.Command, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: exactArgs(n, what), RunE: run}
}

// unitArg reads IQN/LUN.
func unitArg(s string) (iqn, lun string, err error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", "", usage(fmt.Errorf("%q is no logical unit; want IQN/LUN, as iqn.2026-01.example:disk1/0", s))
	}
	if _, err := strconv.Atoi(s[i+1:]); err != nil {
		return "", "", usage(fmt.Errorf("%q: %q is no LUN; want IQN/LUN, as iqn.2026-01.example:disk1/0", s, s[i+1:]))
	}
	return s[:i], s[i+1:], nil
}

// settings reads KEY=VALUE arguments.
func settings(args []string) (map[string]string, error) {
	m := map[string]string{}
	for _, s := range args {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usage(fmt.Errorf("%q: want KEY=VALUE", s))
		}
		if _, twice := m[k]; twice {
			return nil, usage(fmt.Errorf("%s is given twice", k))
		}
		m[k] = v
	}
	return m, nil
}

// manageCmds are the commands that manage a running iserd.
func (a *app) manageCmds() []*cobra.Command {
	return []*cobra.Command{
		a.statusCmd(), a.statsCmd(), a.targetCmd(), a.lunCmd(), a.backstoreCmd(), a.portalCmd(), a.aclCmd(), a.manageAuthCmd(),
		a.sessionCmd(), a.eventsCmd(), a.logCmd(),
	}
}
