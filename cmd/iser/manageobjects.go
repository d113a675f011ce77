package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// group makes a command that only holds others.
func group(use, short string, list ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: exactArgs(0, "one of the commands below"), RunE: func(c *cobra.Command, _ []string) error {
		return usage(fmt.Errorf("%s: want one of its commands; --help lists them", c.CommandPath()))
	}}
	c.AddCommand(list...)
	return c
}

func (a *app) targetCmd() *cobra.Command {
	var alias string
	create := verb("create IQN", "Make a target, without logical units yet", 1, "one IQN", func(cmd *cobra.Command, args []string) error {
		return a.alter(cmd, http.MethodPut, admin.TargetRequest{Alias: alias}, "targets", args[0])
	})
	create.Flags().StringVar(&alias, "alias", "", "`TEXT` that initiators show")
	switchTo := func(word, short string) *cobra.Command {
		return a.complete(verb(word+" IQN", short, 1, "one IQN", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, http.MethodPost, nil, "targets", args[0], word)
		}))
	}
	return a.changes(group("target", "Manage the targets of iserd",
		verb("list", "List the targets", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
			var list []admin.Target
			if err := a.get(cmd, &list, "targets"); err != nil {
				return err
			}
			return a.show(list, func(t table.Writer) { targetRows(t, list) })
		}),
		a.complete(verb("show IQN", "Show a target with its logical units", 1, "one IQN", func(cmd *cobra.Command, args []string) error {
			var v admin.Target
			if err := a.get(cmd, &v, "targets", args[0]); err != nil {
				return err
			}
			return a.show(v, func(t table.Writer) {
				t.AppendHeader(table.Row{"LUN", "BACKSTORE", "SIZE", "BLOCK", "MODE", "COMMANDS", "ERR"})
				for _, l := range v.LUNs {
					mode := map[bool]string{true: "ro", false: "rw"}[l.ReadOnly]
					t.AppendRow(table.Row{l.Number, l.Backstore, humanize.IBytes(uint64(l.SizeBytes)), l.BlockSize, mode, l.Commands, l.Errors})
				}
			})
		})),
		create,
		a.complete(verb("delete IQN", "Delete a target; its backstores stay", 1, "one IQN", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, http.MethodDelete, nil, "targets", args[0])
		})),
		switchTo("enable", "Let initiators log in again"), switchTo("disable", "Let nobody log in; sessions are closed with --force"),
	))
}

func targetRows(t table.Writer, list []admin.Target) {
	t.AppendHeader(table.Row{"TARGET", "ENABLED", "LUNS", "SESSIONS", "AUTH", "ALLOW"})
	for _, v := range list {
		t.AppendRow(table.Row{v.Name, v.Enabled, len(v.LUNs), v.Sessions, cmp.Or(v.Auth, "none"), allowText(v.Allow)})
	}
}

func allowText(list []string) string {
	if len(list) == 0 {
		return "any"
	}
	return strings.Join(list, " ")
}

func (a *app) lunCmd() *cobra.Command {
	var readOnly bool
	var blockSize int
	add := a.complete(verb("add IQN/LUN BACKSTORE", "Add a logical unit", 2, "IQN/LUN and BACKSTORE", func(cmd *cobra.Command, args []string) error {
		iqn, lun, err := unitArg(args[0])
		if err != nil {
			return err
		}
		return a.alter(cmd, http.MethodPut, admin.LUNRequest{Backstore: args[1], ReadOnly: readOnly, BlockSize: blockSize}, "targets", iqn, "luns", lun)
	}))
	add.Flags().BoolVar(&readOnly, "ro", false, "initiators cannot write")
	add.Flags().IntVar(&blockSize, "block-size", 512, "512 or 4096 `BYTES`")
	return a.changes(group("lun", "Manage the logical units of targets",
		add,
		a.complete(verb("remove IQN/LUN", "Remove a logical unit; its backstore stays", 1, "one IQN/LUN", func(cmd *cobra.Command, args []string) error {
			iqn, lun, err := unitArg(args[0])
			if err != nil {
				return err
			}
			return a.alter(cmd, http.MethodDelete, nil, "targets", iqn, "luns", lun)
		})),
		a.complete(&cobra.Command{
			Use: "set IQN/LUN KEY=VALUE...", Short: "Change a logical unit: readonly=yes|no, backstore=NAME, block_size=512|4096",
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) < 2 {
					return usage(errors.New("want IQN/LUN and KEY=VALUE"))
				}
				return nil
			},
			RunE: func(cmd *cobra.Command, args []string) error {
				iqn, lun, err := unitArg(args[0])
				if err != nil {
					return err
				}
				r, err := lunSettings(args[1:])
				if err != nil {
					return err
				}
				return a.alter(cmd, http.MethodPatch, r, "targets", iqn, "luns", lun)
			},
		}),
	))
}

func lunSettings(args []string) (r admin.LUNSetRequest, err error) {
	m, err := settings(args)
	if err != nil {
		return r, err
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		switch k {
		case "readonly":
			on, err := yesNo("readonly", v)
			if err != nil {
				return r, err
			}
			r.ReadOnly = &on
		case "backstore":
			r.Backstore = &v
		case "block_size":
			n, err := strconv.Atoi(v)
			if err != nil {
				return r, usage(fmt.Errorf("block_size %q: want 512 or 4096", v))
			}
			r.BlockSize = &n
		case "size":
			return r, usage(errors.New("the size is the backstore's: iser backstore resize NAME SIZE"))
		default:
			return r, usage(fmt.Errorf("there is no %s; want readonly, backstore or block_size", k))
		}
	}
	return r, nil
}

func (a *app) backstoreCmd() *cobra.Command {
	return a.changes(group("backstore", "Manage what holds the blocks",
		verb("list", "List the backstores", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
			var list []admin.Backstore
			if err := a.get(cmd, &list, "backstores"); err != nil {
				return err
			}
			return a.show(list, func(t table.Writer) { storeRows(t, list) })
		}),
		&cobra.Command{
			Use: "create NAME TYPE [KEY=VALUE...]", Short: "Open a backstore: ram, file, block, null, fault, pattern, gotgt; options as in the configuration file",
			Example: "  iser backstore create vm1 file path=/srv/vm1.img size=64GiB",
			Args:    atLeast(2, "NAME, TYPE and options KEY=VALUE"),
			RunE: func(cmd *cobra.Command, args []string) error {
				o, err := settings(args[2:])
				if err != nil {
					return err
				}
				return a.alter(cmd, http.MethodPut, admin.BackstoreRequest{Type: args[1], Options: absolute(o)}, "backstores", args[0])
			},
		},
		&cobra.Command{
			Use: "set NAME KEY=VALUE...", Short: "Change options of a backstore; KEY= takes one away",
			Example: `  iser backstore set bad rules="latency write delay=5ms"`,
			Args:    atLeast(2, "NAME and KEY=VALUE"),
			RunE: func(cmd *cobra.Command, args []string) error {
				o, err := settings(args[1:])
				if err != nil {
					return err
				}
				return a.alter(cmd, http.MethodPatch, admin.BackstoreSetRequest{Options: absolute(o)}, "backstores", args[0])
			},
		},
		verb("resize NAME SIZE", "Change the size, while it is used; smaller with --force, which drops what lies behind", 2, "NAME and SIZE", func(cmd *cobra.Command, args []string) error {
			if _, err := backstore.ParseSize(args[1]); err != nil {
				return usage(err)
			}
			return a.alter(cmd, http.MethodPatch, admin.BackstoreSetRequest{Options: map[string]string{"size": args[1]}}, "backstores", args[0])
		}),
		verb("delete NAME", "Close a backstore; a file stays", 1, "one NAME", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, http.MethodDelete, nil, "backstores", args[0])
		}),
	))
}

// absolute makes a path one that means the same to the daemon, whose directory is another.
func absolute(o map[string]string) map[string]string {
	if p := o["path"]; p != "" {
		if abs, err := filepath.Abs(p); err == nil {
			o["path"] = abs
		}
	}
	return o
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return usage(errors.New("want " + what))
		}
		return nil
	}
}

func storeRows(t table.Writer, list []admin.Backstore) {
	t.AppendHeader(table.Row{"BACKSTORE", "TYPE", "SIZE", "MODE", "USED BY", "OPTIONS"})
	for _, b := range list {
		var o []string
		for _, k := range slices.Sorted(maps.Keys(b.Options)) {
			o = append(o, k+"="+b.Options[k])
		}
		mode := map[bool]string{true: "ro", false: "rw"}[b.ReadOnly]
		t.AppendRow(table.Row{b.Name, b.Type, humanize.IBytes(uint64(b.SizeBytes)), mode, strings.Join(b.UsedBy, " "), strings.Join(o, " ")})
	}
}

func (a *app) portalCmd() *cobra.Command {
	var r admin.PortalRequest
	add := verb("add ADDRESS[:PORT]", "Listen on one more address", 1, "one ADDRESS[:PORT]", func(cmd *cobra.Command, args []string) error {
		return a.alter(cmd, http.MethodPut, r, "portals", args[0])
	})
	add.Flags().StringVar(&r.Provider, "provider", "auto", "of iSER beside TCP: auto, verbs, roce, or tcp for none")
	add.Flags().IntVar(&r.Group, "group", 1, "tag of the portal group")
	add.Flags().StringVar(&r.Advertise, "advertise", "", "`ADDRESS:PORT` that discovery answers instead")
	add.Flags().StringVar(&r.External, "external", "", "`ADDRESS` that peers see, behind NAT")
	return a.changes(group("portal", "Manage the addresses that iserd listens on",
		verb("list", "List the portals", 0, "no arguments", func(cmd *cobra.Command, _ []string) error {
			var list []admin.Portal
			if err := a.get(cmd, &list, "portals"); err != nil {
				return err
			}
			return a.show(list, func(t table.Writer) {
				t.AppendHeader(table.Row{"LISTEN", "ADDRESS", "PROVIDER", "ISER BY", "GROUP", "SESSIONS"})
				for _, p := range list {
					t.AppendRow(table.Row{p.Listen, p.Address, p.Provider, cmp.Or(p.RDMA, "-"), p.Group, p.Sessions})
				}
			})
		}),
		add,
		verb("remove ADDRESS[:PORT]", "Stop listening on an address; its sessions are closed with --force", 1, "one ADDRESS[:PORT]", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, http.MethodDelete, nil, "portals", args[0])
		}),
	))
}

func (a *app) aclCmd() *cobra.Command {
	who := func(word, method, short string) *cobra.Command {
		return a.complete(verb(word+" IQN INITIATOR|NETWORK", short, 2, "IQN and INITIATOR or NETWORK", func(cmd *cobra.Command, args []string) error {
			return a.alter(cmd, method, nil, "targets", args[0], "acl", args[1])
		}))
	}
	return a.changes(group("acl", "Manage who may log in to a target",
		a.complete(verb("list IQN", "List who may log in", 1, "one IQN", func(cmd *cobra.Command, args []string) error {
			var v admin.Acl
			if err := a.get(cmd, &v, "targets", args[0], "acl"); err != nil {
				return err
			}
			return a.show(v, func(t table.Writer) {
				t.AppendHeader(table.Row{"ALLOWED"})
				for _, w := range v.Allow {
					t.AppendRow(table.Row{w})
				}
				if len(v.Allow) == 0 {
					t.AppendRow(table.Row{"any"})
				}
			})
		})),
		who("allow", http.MethodPut, "Let an initiator, or a network, log in; any: everybody"),
		who("deny", http.MethodDelete, "Take an initiator, or a network, off the list; its sessions are closed with --force"),
	))
}

// discoveryWord stands for discovery in place of a target.
const discoveryWord = "discovery"

func (a *app) manageAuthCmd() *cobra.Command {
	var user, initiator string
	path := func(who string) []string {
		if who == discoveryWord {
			return []string{discoveryWord, "auth"}
		}
		return []string{"targets", who, "auth"}
	}
	set := a.complete(&cobra.Command{
		Use: "set IQN|discovery --user NAME", Short: "Have initiators prove who they are (CHAP)",
		Long: `Sets what initiators have to prove from their next login on. The secret is read from standard input, one line, and stands in
iserd's configuration file once that is saved; or it is in the file of --secret-file, which iserd reads, and of which the
configuration has the name. --mutual-user and --mutual-secret-file are what the target proves.`,
		Args: exactArgs(1, "one IQN, or discovery"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := admin.AuthRequest{Initiator: initiator, User: user, MutualUser: a.auth.mutualUser}
			var err error
			if r.SecretFile = a.auth.secretFile; r.SecretFile == "" {
				if r.Secret, err = readLine(cmd.InOrStdin()); err != nil {
					return usage(err)
				}
			} else if r.SecretFile, err = filepath.Abs(r.SecretFile); err != nil {
				return err
			}
			if r.MutualSecretFile = a.auth.mutualSecretFile; r.MutualSecretFile != "" {
				if r.MutualSecretFile, err = filepath.Abs(r.MutualSecretFile); err != nil {
					return err
				}
			}
			return a.alter(cmd, http.MethodPut, r, path(args[0])...)
		},
	})
	set.Flags().StringVar(&user, "user", "", "CHAP user `NAME`")
	set.Flags().StringVar(&initiator, "initiator", "", "of this initiator alone, by its iSCSI `NAME`")
	unset := a.complete(verb("clear IQN|discovery", "Have initiators prove nothing", 1, "one IQN, or discovery", func(cmd *cobra.Command, args []string) error {
		return a.alter(cmd, http.MethodDelete, nil, path(args[0])...)
	}))
	return a.changes(group("auth", "Manage what initiators have to prove", set, unset))
}

// readLine reads a secret that is no argument, for arguments are everybody's to see.
func readLine(r io.Reader) (string, error) {
	if f, ok := r.(*os.File); ok && terminal(f) {
		return "", errors.New("the secret is read from standard input, and that is a terminal, which would show it; pipe it, or give --secret-file")
	}
	line, err := bufio.NewReader(io.LimitReader(r, chap.MaxSecret+2)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", errors.New("no secret on standard input; pipe it, or give --secret-file")
	}
	return line, nil
}

// terminal reports whether a file is a character device, as terminals are.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull
}

// complete completes the first argument with the names of targets.
func (a *app) complete(c *cobra.Command) *cobra.Command {
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var list []admin.Target
		if len(args) > 0 || a.get(cmd, &list, "targets") != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, t := range list {
			names = append(names, t.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return c
}
