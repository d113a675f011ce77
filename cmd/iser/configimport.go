package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goiser/goiser/cmd/importer"
	"github.com/goiser/goiser/conf"
	"github.com/spf13/cobra"
)

// An importFunc reads the configuration of another target.
type importFunc func(path string, o importer.Options) (*importer.Result, error)

func importFrom(name string) (importFunc, error) {
	switch name {
	case "gotgt":
		return importer.Gotgt, nil
	case "stgt":
		return importer.STGT, nil
	case "lio":
		return importer.LIO, nil
	}
	return nil, fmt.Errorf("import from %q: want gotgt, stgt or lio", name)
}

func (a *app) importCmd() *cobra.Command {
	var strict bool
	var listen []string
	var o importer.Options
	c := &cobra.Command{
		Use:   "import gotgt|stgt|lio FILE",
		Short: "Make a configuration of that of gotgt, stgt or LIO",
		Long: `Writes to stdout what FILE means as a configuration of iserd, and lists on stderr what could not be carried over: gotgt's
config.json, stgt's targets.conf (with what it includes) or the output of tgt-admin --dump, LIO's saveconfig.json.

Nothing is opened wider than it was. A target whose proof of identity, or whose list of initiators, is lost is disabled.
What other hosts could reach without proving anything listens on this host only, unless --insecure says that the network is
trusted. Secrets are written into the file: keep it for its owner's eyes. docs/MOVE.md tells the whole way.`,
		Example: "  iser config import stgt /etc/tgt/targets.conf > iserd.yaml && iserd check iserd.yaml",
		Args:    exactArgs(2, "gotgt, stgt or lio, and a FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			read, err := importFrom(args[0])
			if err != nil {
				return usage(err)
			}
			for _, l := range listen {
				address, err := conf.ParseAddress(l)
				if err != nil {
					return usage(fmt.Errorf("--listen: %w", err))
				}
				o.Listen = append(o.Listen, address)
			}
			return a.importConfig(read, args[1], o, strict)
		},
	}
	f := c.Flags()
	f.BoolVar(&strict, "strict", false, "fail if anything could not be carried over")
	f.StringArrayVar(&listen, "listen", nil, "listen on this `ADDRESS:PORT`, instead of where the file says; may be repeated")
	f.BoolVar(&o.Insecure, "insecure", false, "the network is trusted: other hosts may use what wants no proof of who they are")
	return c
}

// importConfig prints the configuration, and then what it lacks. Nothing is printed that iserd would refuse.
func (a *app) importConfig(read importFunc, path string, o importer.Options, strict bool) error {
	r, err := read(path, o)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	for _, l := range r.Lost {
		fmt.Fprintf(a.errOut, "not carried over: %s\n", l)
	}
	if strict && len(r.Lost) > 0 {
		return errors.New("import: not everything could be carried over (--strict)")
	}
	if _, err := fmt.Fprintf(a.out, "# Made by iser config import of %s.\n%s", strings.ReplaceAll(path, "\n", " "), r.Config.Marshal()); err != nil {
		return fmt.Errorf("import: %w", err)
	}
	return nil
}
