package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

func (a *app) discoverCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "discover URL",
		Short: "List the targets of a portal (SendTargets)",
		Long:  "Opens a discovery session and lists the targets that the portal shows us.\n" + urlHelp,
		Args:  exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := parseURL(args[0])
			if err != nil {
				return err
			}
			recs, err := a.discover(cmd.Context(), u)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(recs)
			}
			t := a.table("TARGET", "ADDRESSES")
			for _, r := range recs {
				t.AppendRow(table.Row{r.Name, strings.Join(r.Addresses, " ")})
			}
			t.Render()
			return nil
		},
	}
}

// table makes a plain table on stdout.
func (a *app) table(head ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(a.out)
	s := table.StyleDefault
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft = ""
	t.SetStyle(s)
	t.AppendHeader(head)
	return t
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
