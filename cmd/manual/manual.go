// Package manual makes man pages of a command's own help, which is laid out by hand and stays so. It is for packaging:
// the pages are made when a package is, and so are never older than the command.
package manual

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command is the hidden command `manual [COMMAND...]`, which writes the man page of root, or of one of its commands, to
// stdout. section is the manual's, 1 or 8.
func Command(root *cobra.Command, section int) *cobra.Command {
	list := false
	c := &cobra.Command{
		Use:    "manual [COMMAND...]",
		Short:  "Write a man page to stdout",
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			if list {
				return names(c.OutOrStdout(), root)
			}
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("unknown command %q: no manual of it", strings.Join(args, " "))
			}
			return Page(c.OutOrStdout(), of, section)
		},
	}
	c.Flags().BoolVar(&list, "list", false, "list the commands that have a page")
	return c
}

// names lists all commands below c, without its own name, a line each.
func names(w io.Writer, c *cobra.Command) error {
	for _, s := range subcommands(c) {
		path := strings.TrimPrefix(s.CommandPath(), c.Root().Name()+" ")
		if _, err := fmt.Fprintln(w, path); err != nil {
			return err
		}
		if err := names(w, s); err != nil {
			return err
		}
	}
	return nil
}

// Page writes the man page of a command in roff's man macros.
func Page(w io.Writer, c *cobra.Command, section int) error {
	var b strings.Builder
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %q %d %q %q\n", strings.ToUpper(name), section, "", "goiser "+c.Root().Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name), escape(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n", escape(synopsis(c)))
	for _, s := range subcommands(c) {
		if !c.HasParent() {
			fmt.Fprintf(&b, "%s\n", escape(synopsis(s)))
		}
	}
	b.WriteString(".fi\n")
	if text := strings.TrimSpace(c.Long); text != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n")
		paragraphs(&b, text)
	}
	if subs := subcommands(c); len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, s := range subs {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escape(strings.TrimPrefix(synopsis(s), c.CommandPath()+" ")), escape(s.Short))
		}
	}
	options(&b, "OPTIONS", c.NonInheritedFlags())
	options(&b, "GLOBAL OPTIONS", c.InheritedFlags())
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, c.Example)
	}
	seeAlso(&b, c, section)
	_, err := io.WriteString(w, b.String())
	return err
}

func synopsis(c *cobra.Command) string { return strings.TrimSuffix(c.UseLine(), " [flags]") }

// subcommands are those that a user sees.
func subcommands(c *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			list = append(list, s)
		}
	}
	return list
}

// paragraphs writes help text: lines that are indented stay as they are, the others flow.
func paragraphs(b *strings.Builder, text string) {
	kept := false
	for line := range strings.SplitSeq(text, "\n") {
		if indented := strings.HasPrefix(line, " "); indented != kept && line != "" {
			if kept = indented; kept {
				b.WriteString(".nf\n")
			} else {
				b.WriteString(".fi\n")
			}
		}
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		fmt.Fprintf(b, "%s\n", escape(line))
	}
	if kept {
		b.WriteString(".fi\n")
	}
}

func verbatim(b *strings.Builder, text string) {
	fmt.Fprintf(b, ".nf\n%s\n.fi\n", escape(text))
}

func options(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		argument, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if argument != "" {
			name += " " + argument
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" && !strings.Contains(text, "default") {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", escape(name), escape(text))
	})
}

// seeAlso names the pages that packages have beside this one.
func seeAlso(b *strings.Builder, c *cobra.Command, section int) {
	var pages []string
	if c.HasParent() {
		pages = append(pages, fmt.Sprintf("%s(%d)", strings.ReplaceAll(c.Parent().CommandPath(), " ", "-"), section))
	}
	for _, s := range subcommands(c) {
		pages = append(pages, fmt.Sprintf("%s(%d)", strings.ReplaceAll(s.CommandPath(), " ", "-"), section))
	}
	for _, page := range []string{"iser(1)", "iserd(8)", "iserd.yaml(5)"} {
		if own := fmt.Sprintf("%s(%d)", c.CommandPath(), section); page != own && !strings.Contains(strings.Join(pages, " ")+" ", page+" ") {
			pages = append(pages, page)
		}
	}
	fmt.Fprintf(b, ".SH SEE ALSO\n%s\n", escape(strings.Join(pages, ", ")))
}

// escape makes text that roff prints as it is: backslashes, hyphens that are minus signs, and lines that would be requests.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
