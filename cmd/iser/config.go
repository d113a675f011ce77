package main

import "github.com/spf13/cobra"

// configCmd holds what is about configuration files.
func (a *app) configCmd() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Make configurations of iserd, and manage that of a running one"}
	c.AddCommand(a.importCmd())
	c.AddCommand(a.runningConfigCmds()...)
	return c
}
