package manual

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sample() *cobra.Command {
	root := &cobra.Command{Use: "tool", Version: "1.0", Short: "Do things"}
	c := &cobra.Command{
		Use: "run FILE", Short: "Run a file", Example: "  tool run a\\b", RunE: func(*cobra.Command, []string) error { return nil },
		Long: "Runs FILE,\nall of it.\n\n.hidden files too:\n  as  it   stands\n  'quoted'\nand flows on.",
	}
	c.Flags().Int("depth", 32, "how many, as `N`")
	c.Flags().BoolP("quiet", "q", false, "say nothing")
	hidden := &cobra.Command{Use: "secret", Hidden: true, RunE: c.RunE}
	root.PersistentFlags().String("socket", "", "where")
	root.AddCommand(c, hidden, Command(root, 1))
	return root
}

func TestPage(t *testing.T) {
	root := sample()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetArgs([]string{"manual", "run"})
	require.NoError(t, root.Execute())
	assert.Equal(t, `.TH "TOOL-RUN" 1 "" "goiser 1.0"
.SH NAME
tool\-run \- Run a file
.SH SYNOPSIS
.nf
tool run FILE
.fi
.SH DESCRIPTION
Runs FILE,
all of it.
.PP
\&.hidden files too:
.nf
  as  it   stands
  'quoted'
.fi
and flows on.
.SH OPTIONS
.TP
.B \-\-depth N
how many, as N (default 32)
.TP
.B \-q, \-\-quiet
say nothing
.SH GLOBAL OPTIONS
.TP
.B \-\-socket string
where
.SH EXAMPLES
.nf
  tool run a\eb
.fi
.SH SEE ALSO
tool(1), iser(1), iserd(8), iserd.yaml(5)
`, b.String())
}

func TestCommandsAreListed(t *testing.T) {
	root := sample()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetArgs([]string{"manual", "--list"})
	require.NoError(t, root.Execute())
	assert.Equal(t, "completion\ncompletion bash\ncompletion fish\ncompletion powershell\ncompletion zsh\nrun\n", b.String())
}

func TestNoManualOfWhatThereIsNot(t *testing.T) {
	root := sample()
	root.SetArgs([]string{"manual", "fly"})
	root.SilenceErrors, root.SilenceUsage = true, true
	assert.ErrorContains(t, root.Execute(), `unknown command "fly"`)
}
