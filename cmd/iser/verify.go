package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/spf13/cobra"
)

// verifyFlags are the flags of iser verify as typed.
type verifyFlags struct {
	offset, size, bs string
	seed, generation uint64
	runs, depth      int
	destructive      bool
	checkOnly        bool
	dump             string
}

func (a *app) verifyCmd() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:   "verify URL",
		Short: "Write stamped blocks, read them back and explain every mismatch",
		Long: `Writes the range with 512-byte sectors that carry their own address, generation, seed and checksum, reads
all of it back into poisoned buffers, and checks every byte. Each run writes a new generation. A mismatch
is explained: poison (the data had not landed), zeros, an older generation (lost write), another sector
(misdirected), another writer, torn, flipped bits, foreign bytes; the sector and what it should have been
are saved next to each other.
` + urlHelp + `

The range is overwritten: --destructive says that this is meant. --check-only reads what an earlier run with
the same --seed left (its --generation is its number of runs).`,
		Example: "  iser verify iser://10.0.0.1 --size 1GiB --destructive\n" +
			"  iser verify iscsi://10.0.0.1/iqn.2026-01.example:disk1/0 --bs mixed --depth 16 --runs 3 --destructive",
		Args: exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.destructive && !f.checkOnly {
				return usage(fmt.Errorf("verify overwrites the disk; say --destructive, or --check-only to read only"))
			}
			s, d, err := a.disk(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			plan, err := f.plan(d)
			if err != nil {
				return err
			}
			return a.verify(cmd.Context(), shownURL(args[0]), d, plan, f.dump)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.offset, "offset", "0", "where to start, a size")
	fl.StringVar(&f.size, "size", "", "how much to verify (default: to the end of the disk)")
	fl.StringVar(&f.bs, "bs", "64KiB", "request size, or mixed: random from one block to 1 MiB")
	fl.Uint64Var(&f.seed, "seed", 0, "seed of the stamps and of the order (default: from the clock)")
	fl.IntVar(&f.runs, "runs", 1, "how often to write and read the range")
	fl.IntVar(&f.depth, "depth", 8, "requests in flight")
	fl.BoolVar(&f.destructive, "destructive", false, "overwrite the range")
	fl.BoolVar(&f.checkOnly, "check-only", false, "read and check what an earlier run wrote")
	fl.Uint64Var(&f.generation, "generation", 1, "with --check-only: the generation expected")
	fl.StringVar(&f.dump, "dump", ".", "folder for the files that show a mismatch")
	return c
}

// maxVerifyIO is the longest request of verify and bench in bytes; maxDepth bounds requests in flight.
const (
	maxVerifyIO = 16 << 20
	maxDepth    = 1024
)

// plan checks the flags against the disk.
func (f verifyFlags) plan(d blockDevice) (verifyPlan, error) {
	p := verifyPlan{seed: f.seed, runs: f.runs, depth: f.depth, checkOnly: f.checkOnly, generation: f.generation}
	if p.seed == 0 {
		p.seed = uint64(time.Now().UnixNano())
	}
	var err error
	if p.offset, err = backstore.ParseSize(f.offset); err != nil {
		return p, usage(fmt.Errorf("--offset: %w", err))
	}
	p.size = d.SizeBytes() - p.offset
	if f.size != "" {
		if p.size, err = backstore.ParseSize(f.size); err != nil {
			return p, usage(fmt.Errorf("--size: %w", err))
		}
	}
	if f.bs == "mixed" {
		p.mixed, p.bs = true, 1<<20
	} else {
		n, err := backstore.ParseSize(f.bs)
		if err != nil {
			return p, usage(fmt.Errorf("--bs: %w", err))
		}
		p.bs = int(min(n, maxVerifyIO+1))
	}
	return p, p.check(d)
}

func (p verifyPlan) check(d blockDevice) error {
	unit := int64(max(d.BlockSize(), stamp.SectorSize))
	switch {
	case p.offset < 0 || p.size <= 0 || p.offset > d.SizeBytes()-p.size:
		return usage(fmt.Errorf("bytes %d to %d are not on the disk, which has %d", p.offset, p.offset+p.size, d.SizeBytes()))
	case p.offset%unit != 0 || p.size%unit != 0 || int64(p.bs)%unit != 0:
		return usage(fmt.Errorf("offset %d, size %d and request size %d must be multiples of %d bytes", p.offset, p.size, p.bs, unit))
	case p.bs < int(unit) || p.bs > maxVerifyIO:
		return usage(fmt.Errorf("--bs: want %d to %d bytes", unit, maxVerifyIO))
	case p.depth < 1 || p.depth > maxDepth:
		return usage(fmt.Errorf("--depth %d: want 1 to %d", p.depth, maxDepth))
	case p.runs < 1:
		return usage(fmt.Errorf("--runs %d: want at least 1", p.runs))
	}
	return nil
}

func (a *app) verify(ctx context.Context, url string, d blockDevice, p verifyPlan, dump string) error {
	v := newVerifier(d, p)
	bar := a.progress("verify", 2*p.size*int64(p.runs))
	v.tick = bar.update
	res, err := v.run(ctx)
	bar.finish()
	if err != nil {
		return fmt.Errorf("verify %s: %w", url, err)
	}
	res.URL = url
	saved, err := saveMismatches(dump, res.Mismatches)
	if err != nil {
		return err
	}
	if a.json() {
		if err := a.printJSON(res); err != nil {
			return err
		}
	} else {
		a.printVerify(res, saved)
	}
	if res.Wrong > 0 {
		return coded(exitMismatch, fmt.Errorf("%d of %d sectors read are wrong (seed %d)", res.Wrong, res.ReadBytes/stamp.SectorSize, res.Seed))
	}
	return nil
}

func (a *app) printVerify(r verifyResult, saved []string) {
	for i, m := range r.Mismatches {
		fmt.Fprintf(a.out, "mismatch at %v\n  expected and found saved to %s\n", m, saved[i])
	}
	fmt.Fprintf(a.out, "verified %s: wrote %s (%s/s), read %s (%s/s), %d mismatches, seed %d\n", r.URL,
		humanize.IBytes(uint64(r.WrittenBytes)), rate(r.WrittenBytes, r.WriteSeconds),
		humanize.IBytes(uint64(r.ReadBytes)), rate(r.ReadBytes, r.ReadSeconds), r.Wrong, r.Seed)
}

func rate(bytes int64, seconds float64) string {
	if seconds <= 0 {
		return "0 B"
	}
	return humanize.IBytes(uint64(float64(bytes) / seconds))
}

// saveMismatches writes a file a mismatch: the sector expected, then the one found.
func saveMismatches(dir string, ms []*stamp.Mismatch) ([]string, error) {
	var names []string
	for _, m := range ms {
		name := filepath.Join(dir, fmt.Sprintf("verify-%d.bin", m.Want.Sector))
		if err := os.WriteFile(name, append(append([]byte{}, m.Expected...), m.Got...), 0o644); err != nil {
			return names, fmt.Errorf("save a mismatch: %w", err)
		}
		names = append(names, name)
	}
	return names, nil
}
