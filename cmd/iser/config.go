package main

import "github.com/spf13/cobra"

// configCmd holds what is about configuration files.
func (a *app) configCmd() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Make configurations of iserd"}
	c.AddCommand(a.importCmd())
	return c
}
