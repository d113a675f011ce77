package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) pingCmd() *cobra.Command {
	count, interval := 3, time.Second
	c := &cobra.Command{
		Use:   "ping URL",
		Short: "Measure NOP-Out round trips",
		Long:  "Logs in and sends NOP-Out pings.\n" + urlHelp,
		Args:  exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := parseURL(args[0])
			if err != nil {
				return err
			}
			s, err := a.session(cmd.Context(), &u)
			if err != nil {
				return err
			}
			defer s.Close()
			var trips []float64
			for i := range count {
				if i > 0 {
					select {
					case <-time.After(interval):
					case <-cmd.Context().Done():
						return cmd.Context().Err()
					}
				}
				d, err := s.Ping(cmd.Context())
				if err != nil {
					return fmt.Errorf("%s: ping: %w", u, err)
				}
				trips = append(trips, d.Seconds())
				if !a.json() {
					fmt.Fprintf(a.out, "%s  seq=%d  %v\n", u, i, d.Round(time.Microsecond))
				}
			}
			if a.json() {
				return a.printJSON(map[string]any{"seconds": trips})
			}
			return nil
		},
	}
	c.Flags().IntVar(&count, "count", 3, "number of pings")
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between pings")
	return c
}
