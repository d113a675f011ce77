package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/spf13/cobra"
)

// verifyFlags are the flags of iser verify as typed.
type verifyFlags struct {
	offset, size, bs, order string
	ranges                  []string
	seed, generation        uint64
	runs, depth, jobs       int
	time                    time.Duration
	destructive             bool
	checkOnly               bool
	overlap                 bool
	zero, unmap, keep       int
	reconnect               time.Duration
	force                   bool
	files                   verifyFiles
}

// verifyFiles is where verify puts what is not its answer.
type verifyFiles struct {
	dump  string // folder for the bytes of mismatches
	heat  string // file for the heat map; none if empty
	state string // folder for the state; none if empty
}

const verifyHelp = `Writes the disk, or ranges of it, with 512-byte sectors that carry their own address, generation, seed and
checksum, reads all of it back into poisoned buffers, and checks every byte. Each run writes a new generation. A
mismatch is explained: poison (the data had not landed), zeros, an older generation (lost write), another sector
(misdirected), another writer, torn at a byte, flipped bits, foreign bytes; what was expected and what was found
are saved next to each other in --dump, the first --keep of each kind.

--zero and --unmap zero and unmap some of what was written, and check that it reads as zeros. Unmapping is a hint, so that
unmapped blocks may also be as before; and where the disk does not promise zeros (LBPRZ) they may be anything.

--overlap has the writers and readers of all jobs go against each other over the same blocks, 16 MiB at a time; a read
may return what a write in flight at the same time left, or had not yet, or mix such writes in a sector, which is
counted, but nothing that is superseded.

--reconnect logs in again when a session is lost, and goes on. What was under way is sent again; with --overlap it is not,
and counts as written or not until the next write. If the target may have lost a write cache with the session, the run
is written again, up to three times.

--state keeps where it is, flushed before it is kept, every five seconds and when it is stopped; the same command goes
on there. When it has ended the state is removed.
`

func (a *app) verifyCmd() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:   "verify URL",
		Short: "Write stamped blocks, read them back and explain every mismatch",
		Long: verifyHelp + urlHelp + `

The ranges are overwritten: --destructive says that this is meant. A disk that others have reserved, or registered to
reserve, is written with --force only; other sessions cannot be seen from here. --check-only reads what an earlier run with
the same --seed, --zero and --unmap left (its --generation is its number of runs).`,
		Example: "  iser verify iser://10.0.0.1 --size 1GiB --destructive\n" +
			"  iser verify iscsi://10.0.0.1/iqn.2026-01.example:disk1/0 --bs mixed --jobs 2 --depth 16 --time 10m --destructive\n" +
			"  iser verify iser://10.0.0.1 --range 0-1GiB --range 50TiB+64MiB --overlap --heatmap map.svg --destructive",
		Args: exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.destructive && !f.checkOnly {
				return usage(errors.New("verify overwrites the disk; say --destructive, or --check-only to read only"))
			}
			if f.time > 0 && !cmd.Flags().Changed("runs") {
				f.runs = 0
			}
			return a.verifyURL(cmd.Context(), args[0], &f)
		},
	}
	f.register(c)
	return c
}

func (f *verifyFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.offset, "offset", "0", "where to start, a size")
	fl.StringVar(&f.size, "size", "", "how much to verify (default: to the end of the disk)")
	fl.StringArrayVar(&f.ranges, "range", nil, "verify `FROM-TO`, FROM- or FROM+SIZE, instead of --offset and --size; may be repeated")
	fl.StringVar(&f.bs, "bs", "64KiB", "request size, or mixed: random from one block to 1 MiB")
	fl.StringVar(&f.order, "order", "random", "order of the requests: random or sequential")
	fl.Uint64Var(&f.seed, "seed", 0, "seed of the stamps and of the order (default: from the clock)")
	fl.IntVar(&f.runs, "runs", 1, "how often to write and read the ranges (with --time: as often as there is time)")
	fl.DurationVar(&f.time, "time", 0, "end after this time: half of it for writing what is then read")
	fl.IntVar(&f.depth, "depth", 8, "requests in flight, for each job")
	fl.IntVar(&f.jobs, "jobs", 1, "sessions that work at once")
	fl.BoolVar(&f.overlap, "overlap", false, "writers and readers of the same blocks at once")
	fl.IntVar(&f.zero, "zero", 0, "how many `PERCENT` of the writes are zeroed again (with --overlap: zero instead)")
	fl.IntVar(&f.unmap, "unmap", 0, "how many `PERCENT` of the writes are unmapped again, where the disk unmaps")
	fl.DurationVar(&f.reconnect, "reconnect", 0, "how long to try to log in again when a session is lost (default: not at all)")
	fl.BoolVar(&f.force, "force", false, "write a disk that others have reserved too")
	fl.IntVar(&f.keep, "keep", 16, "mismatches of each kind to show and save")
	fl.BoolVar(&f.destructive, "destructive", false, "overwrite the ranges")
	fl.BoolVar(&f.checkOnly, "check-only", false, "read and check what an earlier run wrote")
	fl.Uint64Var(&f.generation, "generation", 1, "with --check-only: the generation expected")
	fl.StringVar(&f.files.dump, "dump", ".", "folder for the files that show a mismatch")
	fl.StringVar(&f.files.state, "state", "", "keep in this `FOLDER` where it is, and go on there")
	fl.StringVar(&f.files.heat, "heatmap", "", "draw mismatches over the disk and time in this SVG `FILE`")
}

// verifyURL logs in once for each job and verifies.
func (a *app) verifyURL(ctx context.Context, url string, f *verifyFlags) error {
	if f.jobs < 1 || f.jobs > verify.MaxJobs {
		return usage(fmt.Errorf("--jobs %d: want 1 to %d", f.jobs, verify.MaxJobs))
	}
	if f.reconnect < 0 {
		return usage(fmt.Errorf("--reconnect %v: want more than nothing", f.reconnect))
	}
	var disks []verify.Disk
	var plan verify.Plan
	for i := range f.jobs {
		c, d, err := a.openVerify(ctx, url, f.reconnect, f.overlap)
		if err != nil {
			return err
		}
		defer c.Close()
		disks = append(disks, verifyDisk{d})
		if i > 0 {
			continue
		}
		if plan, err = f.plan(d); err != nil {
			return err
		}
		if err := a.prepareVerify(ctx, d, &plan, f.force); err != nil {
			return err
		}
	}
	if f.files.state == "" {
		return a.verify(ctx, dial.Redact(url), disks, plan, f.files, nil)
	}
	st, err := openVerifyState(f.files.state)
	if err != nil {
		return err
	}
	defer st.dir.Close()
	if st.found != nil && f.seed == 0 {
		plan.Seed = st.found.Plan.Seed
	}
	return a.verify(ctx, dial.Redact(url), disks, plan, f.files, st)
}

// prepareVerify asks the disk what the plan has to know.
func (a *app) prepareVerify(ctx context.Context, d *initiator.Disk, p *verify.Plan, force bool) (err error) {
	if !force && !p.CheckOnly {
		if err := refuseInUse(ctx, d); err != nil {
			return err
		}
	}
	if p.Unmap == 0 {
		return nil
	}
	if !d.CanUnmap() {
		a.note("the disk does not unmap: nothing is unmapped")
		p.Unmap = 0
		return nil
	}
	p.UnmapZeroes, err = d.UnmapZeroes(ctx)
	return err
}

// plan checks the flags against the disk.
func (f *verifyFlags) plan(d blockDevice) (verify.Plan, error) {
	p := verify.Plan{
		Seed: f.seed, Runs: f.runs, Depth: f.depth, Time: f.time, Overlap: f.overlap,
		CheckOnly: f.checkOnly, Generation: f.generation, Zero: f.zero, Unmap: f.unmap, Keep: f.keep,
	}
	if p.Seed == 0 {
		p.Seed = uint64(time.Now().UnixNano())
	}
	switch f.order {
	case "random":
	case "sequential":
		p.Sequential = true
	default:
		return p, usage(fmt.Errorf("--order %q: want random or sequential", f.order))
	}
	if p.Mixed = f.bs == "mixed"; !p.Mixed {
		n, err := backstore.ParseSize(f.bs)
		if err != nil {
			return p, usage(fmt.Errorf("--bs: %w", err))
		}
		p.RequestBytes = int(min(n, verify.MaxRequest+1))
	}
	var err error
	if p.Ranges, err = f.parseRanges(d.SizeBytes()); err != nil {
		return p, usage(err)
	}
	if err := p.Check(d.SizeBytes(), d.BlockSize()); err != nil {
		return p, usage(err)
	}
	return p, nil
}

// parseRanges reads --range, or --offset and --size.
func (f *verifyFlags) parseRanges(sizeBytes int64) ([]verify.Range, error) {
	if len(f.ranges) > 0 {
		if f.offset != "0" || f.size != "" {
			return nil, errors.New("--range stands for --offset and --size: want one or the other")
		}
		var all []verify.Range
		for _, s := range f.ranges {
			from, to, err := backstore.ParseRange(s)
			if err != nil {
				return nil, fmt.Errorf("--range %q: %w", s, err)
			}
			if to == math.MaxInt64 { // FROM-: to the end
				to = sizeBytes
			}
			all = append(all, verify.Range{Start: from, End: to})
		}
		return all, nil
	}
	offset, err := backstore.ParseSize(f.offset)
	if err != nil {
		return nil, fmt.Errorf("--offset: %w", err)
	}
	size := sizeBytes - offset
	if f.size != "" {
		if size, err = backstore.ParseSize(f.size); err != nil {
			return nil, fmt.Errorf("--size: %w", err)
		}
	}
	if size > sizeBytes-offset {
		return nil, fmt.Errorf("%d bytes at %d are not on the disk, which has %d", size, offset, sizeBytes)
	}
	return []verify.Range{{Start: offset, End: offset + size}}, nil
}

// A verifyReport is what verify says.
type verifyReport struct {
	URL string `json:"url"`
	verify.Result
	HeatMap string `json:"heat_map,omitempty"`
}

func (a *app) verify(ctx context.Context, url string, disks []verify.Disk, p verify.Plan, files verifyFiles, st *verifyState) error {
	bar := a.progress("verify", p.TotalBytes())
	if p.Time > 0 {
		bar.until = time.Now().Add(p.Time)
	}
	r := verify.New(disks, p, bar.update)
	if err := st.attach(r); err != nil {
		return usage(err)
	}
	res, err := r.Run(ctx)
	bar.finish()
	if err = st.ended(err); err != nil && ctx.Err() != nil && st != nil {
		err = fmt.Errorf("stopped; the same command with --state %s goes on: %w", files.state, err)
	}
	rep := verifyReport{URL: url, Result: res, HeatMap: files.heat}
	serr := saveMismatches(files.dump, rep.Bad)
	if files.heat != "" {
		serr = errors.Join(serr, saveHeat(files.heat, r.Heat()))
	}
	if err != nil && res.Wrong == 0 { // nothing to report but the error
		return errors.Join(fmt.Errorf("verify %s: %w", url, err), serr)
	}
	if perr := a.printVerify(&rep); perr != nil {
		return perr
	}
	if res.Wrong > 0 {
		wrong := fmt.Errorf("%d of %d sectors read are wrong (seed %d)", res.Wrong, res.ReadBytes/stamp.SectorSize, res.Seed)
		return coded(exitMismatch, errors.Join(wrong, err, serr))
	}
	return serr
}

func (a *app) printVerify(r *verifyReport) error {
	if a.json() {
		return a.printJSON(r)
	}
	for _, b := range r.Bad {
		fmt.Fprintf(a.out, "mismatch at %s\n", b.Text)
		if b.File != "" {
			fmt.Fprintf(a.out, "  expected and found saved to %s\n", b.File)
		}
	}
	if r.Wrong > 0 {
		var kinds []string
		for _, k := range slices.Sorted(maps.Keys(r.Kinds)) {
			kinds = append(kinds, fmt.Sprintf("%d %s", r.Kinds[k], k))
		}
		fmt.Fprintf(a.out, "by kind: %s\n", strings.Join(kinds, ", "))
	}
	if r.Mixed > 0 {
		fmt.Fprintf(a.out, "%d sectors mixed writes that overlapped: the disk does not write a block at one moment (allowed)\n", r.Mixed)
	}
	if r.ZeroedBytes+r.UnmappedBytes > 0 {
		fmt.Fprintf(a.out, "zeroed %s, unmapped %s, of which %s were found as they had been (allowed)\n",
			humanize.IBytes(uint64(r.ZeroedBytes)), humanize.IBytes(uint64(r.UnmappedBytes)), humanize.IBytes(uint64(r.KeptBytes)))
	}
	if r.Unknown > 0 {
		fmt.Fprintf(a.out, "%d requests of unknown outcome, since their session was lost\n", r.Unknown)
	}
	if r.Rewritten > 0 {
		fmt.Fprintf(a.out, "%d times a run was written again: what was not flushed could have been lost with the target's cache\n", r.Rewritten)
	}
	if r.CacheDoubtful {
		fmt.Fprintln(a.out, "a flush was in doubt to the end: older data may be the loss of the target's cache, and no mismatch")
	}
	if r.TimeUp {
		fmt.Fprintf(a.out, "the time was up before run %d was whole\n", r.Runs)
	}
	fmt.Fprintf(a.out, "verified %s: wrote %s (%s/s), read %s (%s/s), %d mismatches, seed %d\n", r.URL,
		humanize.IBytes(uint64(r.WrittenBytes)), rate(r.WrittenBytes, r.WriteSeconds),
		humanize.IBytes(uint64(r.ReadBytes)), rate(r.ReadBytes, r.ReadSeconds), r.Wrong, r.Seed)
	return nil
}

func rate(bytes int64, seconds float64) string {
	if seconds <= 0 {
		return "0 B"
	}
	return humanize.IBytes(uint64(float64(bytes) / seconds))
}

// saveMismatches writes a file a mismatch: the sector expected, then the one found. Of a sector that was wrong more
// than once each has a file.
func saveMismatches(dir string, bad []verify.Bad) error {
	times := make(map[uint64]int)
	for i := range bad {
		m := &bad[i]
		name := fmt.Sprintf("verify-%d.bin", m.Want.Sector)
		if n := times[m.Want.Sector]; n > 0 {
			name = fmt.Sprintf("verify-%d-%d.bin", m.Want.Sector, n+1)
		}
		times[m.Want.Sector]++
		if m.Got == nil {
			continue // was found before it was resumed, and saved then
		}
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, slices.Concat(m.Expected, m.Got), 0o644); err != nil {
			return fmt.Errorf("save a mismatch: %w", err)
		}
		m.File = name
	}
	return nil
}

func saveHeat(name string, h *verify.Heat) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("heat map: %w", err)
	}
	if err := errors.Join(h.SVG(f), f.Close()); err != nil {
		return fmt.Errorf("heat map: %w", err)
	}
	return nil
}
