package main

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// A unitRow is one logical unit in the output of ls.
type unitRow struct {
	URL       string `json:"url"`
	Product   string `json:"product"`
	SizeBytes int64  `json:"size_bytes"`
	BlockSize int    `json:"block_size"`
	ReadOnly  bool   `json:"read_only"`
	Error     string `json:"error,omitempty"`
}

func (a *app) lsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "ls URL",
		Short: "List targets and their logical units",
		Long:  "Logs in to the target (or each target of the portal) and lists its disks.\n" + urlHelp,
		Args:  exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := parseURL(args[0])
			if err != nil {
				return err
			}
			rows, err := a.listUnits(cmd.Context(), u)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(rows)
			}
			t := a.table("URL", "PRODUCT", "SIZE", "BLOCK", "MODE")
			for _, r := range rows {
				mode := "rw"
				if r.ReadOnly {
					mode = "ro"
				}
				if r.Error != "" {
					mode = r.Error
				}
				t.AppendRow(table.Row{r.URL, r.Product, humanize.IBytes(uint64(r.SizeBytes)), r.BlockSize, mode})
			}
			t.Render()
			return nil
		},
	}
}

func (a *app) listUnits(ctx context.Context, u dial.URL) ([]unitRow, error) {
	targets := []string{u.Target}
	if u.Target == "" {
		recs, err := a.discover(ctx, u)
		if err != nil {
			return nil, err
		}
		targets = nil
		for _, r := range recs {
			targets = append(targets, r.Name)
		}
	}
	var rows []unitRow
	for _, t := range targets {
		u.Target = t
		s, err := a.session(ctx, &u)
		if err != nil {
			return nil, err
		}
		more, err := a.unitsOf(ctx, s, u)
		s.Close()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (a *app) unitsOf(ctx context.Context, s *initiator.Session, u dial.URL) ([]unitRow, error) {
	luns, err := a.luns(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u, err)
	}
	var rows []unitRow
	for _, lun := range luns {
		r := unitRow{URL: fmt.Sprintf("%s/%v", u, lun)}
		if inq, err := s.Inquiry(ctx, lun, false, 0); err == nil {
			r.Product = parseInquiry(inq).String()
		}
		if d, err := s.Disk(ctx, lun); err != nil {
			r.Error = err.Error()
		} else {
			r.SizeBytes, r.BlockSize, r.ReadOnly = d.SizeBytes(), d.BlockSize(), d.ReadOnly()
		}
		rows = append(rows, r)
	}
	return rows, nil
}
