// Command iser discovers, reads, writes, verifies and measures iSER and iSCSI targets.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/goiser/goiser/cmd/manual"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

// version is set by the linker in releases.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	a := &app{out: os.Stdout, errOut: os.Stderr}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.provider != nil {
		if cerr := a.provider.Close(); err == nil {
			err = cerr
		}
	}
	if cerr := a.packets.stop(a); err == nil {
		err = cerr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "iser:", err)
	}
	return exitCode(err)
}

// An app is one invocation: its streams and global flags.
type app struct {
	out, errOut *os.File
	output      string
	timeout     time.Duration
	name        string
	source      string
	provider    *provider.Provider // opened by the first iser:// URL
	said        bool               // the transport has been told
	quiet       bool
	verbose     bool
	tune        tuning
	auth        authFlags
	packets     packetFlags
	manage      manageFlags
	warned      []string // what has been told
	depth       int      // commands under way in a session; 0: as many as the library has
}

// tuning is what the flags say of the keys we offer.
type tuning struct {
	initialR2T, immediateData string
	firstBurst, maxBurst      string
	partialImmediate          bool
}

const urlHelp = `
URL is iser://[USER@]HOST[:PORT][/IQN[/LUN]] or iscsi://[USER@]HOST[:PORT][/IQN[/LUN]]; the port defaults to 3260.
Without IQN or LUN the only one there is taken, else the choices are listed.
?rdma=NAME picks the RDMA provider of iser://: verbs (an RDMA device), roce (our own RoCEv2 over UDP, which needs
none), or auto, which is verbs where the address lies on an RDMA device, else roce (default).` + authHelp

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "iser",
		Short: "Discover, read, write, verify and measure iSER and iSCSI targets",
		Long: "iser talks to any iSER (iSCSI over RDMA) or iSCSI target from user space.\n" + urlHelp + `

Exit codes: 0 done; 1 other; 2 usage; 3 not found; 4 exists and differs; 5 in use; 6 refused; 7 cannot connect; 8 timed out;
9 protocol error; 10 data mismatch; 11 SCSI check condition.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if managing(cmd) {
				return a.checkManage()
			}
			return a.check()
		},
	}
	f := root.PersistentFlags()
	f.StringVarP(&a.output, "output", "o", "table", "table or json; of what manages iserd also yaml or csv")
	f.DurationVar(&a.timeout, "timeout", 15*time.Second, "limit for connecting and logging in, and for what iserd is asked (default there 45s)")
	f.StringVar(&a.name, "initiator-name", "", "our iSCSI name (default: made from the host name)")
	f.StringVar(&a.source, "source", "", "local address for roce (default: that of the route; on loopback a free one)")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress, no notes on stderr")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log session events to stderr")
	f.StringVar(&a.tune.initialR2T, "initial-r2t", "", "offer InitialR2T=yes or no (default: yes over iSER, no over TCP)")
	f.StringVar(&a.tune.immediateData, "immediate-data", "yes", "offer ImmediateData=yes or no")
	f.StringVar(&a.tune.firstBurst, "first-burst", "", "FirstBurstLength to offer, for example 64KiB")
	f.StringVar(&a.tune.maxBurst, "max-burst", "", "MaxBurstLength to offer, for example 1MiB")
	f.BoolVar(&a.tune.partialImmediate, "partial-immediate", false, "over iSER, send immediate data with long writes too")
	f.StringVar(&a.auth.secretFile, "secret-file", "", "`FILE` with the CHAP secret of the URL's user")
	f.StringVar(&a.auth.mutualUser, "mutual-user", "", "CHAP `NAME` that the target must prove to be")
	f.StringVar(&a.auth.mutualSecretFile, "mutual-secret-file", "", "`FILE` with the secret of --mutual-user")
	f.StringSliceVar(&a.auth.algorithms, "chap", nil, "CHAP algorithms to offer, in this order (default sha3-256,sha256,sha1,md5; old stgt: md5)")
	a.packets.register(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(a.discoverCmd(), a.lsCmd(), a.inqCmd(), a.pingCmd(), a.ddCmd(), a.verifyCmd(), a.benchCmd(), a.demoCmd(), a.labCmd(), a.traceCmd(), a.configCmd())
	root.AddCommand(a.manageCmds()...)
	root.AddCommand(manual.Command(root, 1))
	return root
}

func (a *app) check() error {
	if a.output != "table" && a.output != "json" {
		return usage(fmt.Errorf("--output %q: want table or json", a.output))
	}
	if a.source != "" {
		if _, err := netip.ParseAddr(a.source); err != nil {
			return usage(fmt.Errorf("--source %q: want an address of this machine", a.source))
		}
	}
	if err := a.packets.check(); err != nil {
		return err
	}
	_, err := a.negotiate()
	return err
}

func (a *app) json() bool { return a.output == "json" }

func (a *app) log() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(a.errOut)
	l.SetLevel(logrus.WarnLevel)
	if a.quiet {
		l.SetLevel(logrus.ErrorLevel)
	}
	if a.verbose {
		l.SetLevel(logrus.DebugLevel)
	}
	return l
}

// note tells a person something that is not the answer.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.errOut, format+"\n", args...)
	}
}

// exactArgs is cobra.ExactArgs with our exit code for usage.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usage(errors.New("want " + what))
		}
		return nil
	}
}
