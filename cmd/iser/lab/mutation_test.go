package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	mutate = flag.Bool("mutate", false, "build the program without one rule after the other, and see scenarios fail (make mutation)")
	only   = flag.String("only", "", "with -mutate: only rules that have this in their text")
)

// A mutation takes one rule out of the source.
type mutation struct {
	rule     string // what is not so any more
	file     string // from the top of the module
	old, new string // a piece of one line, which is there once
	sees     string // the scenario that must fail
}

// mutations are a change for each rule; DESIGN.md's sections in brackets.
func mutations() []mutation {
	const (
		request = "iser/request.go"
		chain   = "iser/chain.go"
		rc      = "iser/rdma/roce/rc/"
	)
	return []mutation{
		{
			"[5.1] a request is over, and its key ended, only when its Sends have completed", request,
			"r.queued || r.sends > 0 ||", "r.queued ||", "lost-send-ack",
		},
		{
			"[5.2] no key goes out when all data went inline", "iser/initiator.go",
			"return p.total - p.unsolicited", "return p.total", "inline-key",
		},
		{
			"[5.3] the key that was invalidated is compared with the one that was given", request,
			"if invalidated && (r.key != keyOpen || stag != r.stag) {", "if false {", "foreign-invalidate",
		},
		{
			"[5.3] a key that the peer has ended is not ended again", request,
			"if invalidated || r.key == keyPermanent {", "if r.key == keyPermanent {", "write-then-send",
		},
		{
			"[5.3] a key that the peer has not ended is ended by us", request,
			"return actInvalidate", "r.key, r.released = keyClosed, true; return actPut | actRelease", "abort-race",
		},
		{
			"[5.3] the memory is given back only with its key", "iser/offer.go",
			"i.closing.push(c)", "i.giveBack(c)", "abort-race",
		},
		{
			"[5.4] a caller that has given up has its buffer to itself", request,
			"if !r.detached {", "if true {", "abort-race",
		},
		{
			"[5.5] a key for reading data into memory does not let it be read", "iser/offer.go",
			"n, access = c.t.EDTL, rdma.RemoteWrite", "n, access = c.t.EDTL, rdma.RemoteWrite|rdma.RemoteRead", "write-then-send",
		},
		{
			"[5.5] a key for fetching data does not let it be written", "iser/offer.go",
			"n, access := c.plan.fetched(), rdma.RemoteRead", "n, access := c.plan.fetched(), rdma.RemoteRead|rdma.RemoteWrite", "duplicate-read",
		},
		{
			"[4] RDMA Writes are posted before the Send that tells of them", chain,
			"o.task, o.chunk = k, t.chunks", "o.task, o.chunk = k, t.chunks; t.wrs[m.wrs], t.wrs[len(t.wrs)-1] = t.wrs[len(t.wrs)-1], t.wrs[m.wrs]",
			"write-then-send",
		},
		{
			"[4] the target's buffers are free only when the Send has completed", chain,
			"o.task, o.chunk = k, t.chunks", "o.task, o.chunk = k, t.chunks; s.task = nil; t.release(k)", "two-initiators",
		},
		{
			"[4] a write is executed only when every RDMA Read of it has completed", "iser/reads.go",
			"case k.pending > 0 || k.getLeft > 0:", "case k.getLeft > 0:", "duplicate-read",
		},
		{
			"a session that is replaced is waited for until no store works for it", "iscsi/target/members.go",
			"for c.running > 0 {", "for c.running > 1<<20 {", "stale-session",
		},
		{
			"rc: what was lost is sent again from the oldest unacknowledged packet on", rc + "requester.go",
			"r.nxt = r.una", "r.nxt = r.una + 1", "write-then-send",
		},
		{
			"rc: an acknowledgement does not pass an RDMA Read whose responses are missing", rc + "responses.go",
			"e != nil && e.first+e.got < una {", "e != nil && false {", "duplicate-read",
		},
		{
			"rc: responses to an RDMA Read are placed in order", rc + "responses.go",
			"if seq > e.first+e.got {", "if false {", "duplicate-read",
		},
		{
			"rc: a gap is not executed over", rc + "responder.go",
			"case seq > r.exp:", "case seq > r.exp+1<<20:", "write-then-send",
		},
		{
			"rc: what comes again is not executed again", rc + "responder.go",
			"case seq < r.exp:", "case seq+1<<20 < r.exp:", "lost-send-ack",
		},
		{
			"rc: a key that is not the memory's present one opens nothing", rc + "memory.go",
			"if g.key.Load() != key && !q.faults.staleKey || ", "if ", "late-write",
		},
		{
			"roce: a packet with a wrong ICRC is dropped", "iser/rdma/roce/qp.go",
			"case !q.in.Verify(p, from.Port(), i):", "case false:", "write-then-send",
		},
	}
}

// top is the module's folder.
const top = "../../.."

// mutated is the source with one rule less.
func (m *mutation) mutated(t *testing.T) (path string, text []byte) {
	path, err := filepath.Abs(filepath.Join(top, m.file))
	require.NoError(t, err)
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(text, []byte(m.old)), "%s: %q must be there once: %s", m.file, m.old, m.rule)
	require.NotContains(t, m.old, "\n")
	require.NotNil(t, Find(m.sees))
	return path, bytes.Replace(text, []byte(m.old), []byte(m.new), 1)
}

// The list fits the source.
func TestMutationsAreFound(t *testing.T) {
	for _, m := range mutations() {
		m.mutated(t)
	}
}

// mutantSeeds is how many seeds a mutant gets to show itself, and mutantPatience how long: it may hang.
const (
	mutantSeeds    = 40
	mutantPatience = 2 * time.Minute
)

// Without any one rule some scenario fails.
func TestMutations(t *testing.T) {
	if !*mutate {
		t.Skip("takes minutes: make mutation")
	}
	dir := t.TempDir()
	var run sync.WaitGroup
	defer run.Wait()
	slots := make(chan struct{}, 2) // one runs while the next one is built
	for i, m := range mutations() {
		if !strings.Contains(m.rule, *only) {
			continue
		}
		slots <- struct{}{}
		program := m.build(t, filepath.Join(dir, fmt.Sprint(i)))
		run.Go(func() {
			defer func() { <-slots }()
			m.run(t, program)
		})
	}
}

// build builds the program without the rule.
func (m *mutation) build(t *testing.T, dir string) string {
	require.NoError(t, os.Mkdir(dir, 0o755))
	path, text := m.mutated(t)
	source, overlay, program := filepath.Join(dir, "source.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "iser")
	require.NoError(t, os.WriteFile(source, text, 0o644))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, list, 0o644))
	cmd := exec.Command("go", "build", "-overlay", overlay, "-ldflags", "-s -w", "-o", program, "./cmd/iser")
	cmd.Dir = top
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", m.rule, out)
	return program
}

// run runs the scenario that must fail.
func (m *mutation) run(t *testing.T, program string) {
	ctx, stop := context.WithTimeout(t.Context(), mutantPatience)
	defer stop()
	began := time.Now()
	cmd := exec.CommandContext(ctx, program, "lab", "run", m.sees, "--control", NoControl, "--seeds", fmt.Sprint(mutantSeeds), "--fail-fast")
	out, err := cmd.CombinedOutput()
	took := time.Since(began).Round(time.Millisecond)
	_ = os.Remove(program) // they are large
	switch code := cmd.ProcessState.ExitCode(); {
	case err == nil:
		assert.Fail(t, "a mutant lives", "%s, without: %s\n%s", m.sees, m.rule, out)
	case code == 10:
		t.Logf("%s fails in %v without: %s", m.sees, took, m.rule)
	case ctx.Err() != nil:
		t.Logf("%s hangs without: %s", m.sees, m.rule)
	default:
		why, _, _ := strings.Cut(string(out), "\n")
		t.Logf("%s ends with code %d in %v (%s) without: %s", m.sees, code, took, why, m.rule)
	}
}
