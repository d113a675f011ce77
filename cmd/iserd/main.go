// Command iserd serves disks over iSCSI and iSER.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/durable"
	"github.com/goiser/goiser/cmd/manual"
	"github.com/goiser/goiser/conf"
	"github.com/spf13/cobra"
)

// version is set by the linker in releases.
var version = "devel"

// Exit codes, as the iser command has them.
const (
	exitOK    = 0
	exitOther = 1
	exitUsage = 2
	exitInUse = 5
)

func main() {
	signals := make(chan os.Signal, 2) // the second one must not be lost
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, signals))
}

// run executes one command line and returns the exit code.
func run(args []string, out, errOut io.Writer, signals <-chan os.Signal) int {
	a := &app{out: out, errOut: errOut, signals: signals, openRDMA: openRDMA}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(errOut, "iserd:", err)
	}
	return exitCode(err)
}

// A usageError is a command line that cannot be.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, backstore.ErrInUse), errors.Is(err, durable.ErrInUse):
		return exitInUse
	// cobra's own errors have no type.
	case strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "if any flags in the group"):
		return exitUsage
	}
	return exitOther
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "iserd",
		Short: "Serve disks over iSCSI and iSER",
		Long: `iserd is an iSCSI target in user space. Each portal address serves iSCSI over TCP and, at the same address, iSER: on
the RDMA device that has it, or by our own RoCEv2 on UDP port 4791, which needs no device.

Without --config it serves one target with one disk, LUN 0: --ram (the default) or --file.

` + storeHelp() + `
Signals: SIGTERM or SIGINT stops accepting, asks initiators to log out, waits for commands in progress,
flushes the stores and ends; a second one ends at once. SIGHUP reads the file again and makes the difference take effect;
a file with mistakes changes nothing.

iser status, iser target, iser lun and the like manage it while it runs, through the socket of --admin.

Exit codes: 0 done; 1 other; 2 usage; 5 address, store, state directory or admin socket in use.`,
		Example: `  iserd --ram 1GiB
  iserd --file /srv/a.img:64GiB
  iserd --config /etc/iserd/iserd.yaml`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return a.serveCommand() },
	}
	a.flags.register(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(a.checkCommand(), a.versionCommand(), manual.Command(root, 8))
	return root
}

// storeHelp lists the types of stores and their options.
func storeHelp() string {
	var b strings.Builder
	b.WriteString("Stores of the configuration file, and their options:\n")
	for _, t := range backstore.Types() {
		fmt.Fprintf(&b, "  %-5s %s\n", t.Name, t.Summary)
		for _, o := range t.Options {
			var notes []string
			if o.Required {
				notes = append(notes, "required")
			}
			if o.Default != "" {
				notes = append(notes, "default "+o.Default)
			}
			fmt.Fprintf(&b, "    %-9s %s", o.Name, o.Summary)
			if len(notes) > 0 {
				fmt.Fprintf(&b, " (%s)", strings.Join(notes, ", "))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file; nothing but it and its files of secrets is opened",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("check wants one FILE")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := conf.Load(args[0])
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				fmt.Fprintln(a.errOut, "warning:", w)
			}
			fmt.Fprintf(a.out, "%s: valid; portals: %d, stores: %d, targets: %d\n", args[0], len(c.Portals), len(c.Backstores), len(c.Targets))
			return nil
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintf(a.out, "iserd %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
