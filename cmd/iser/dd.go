package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/spf13/cobra"
)

// ddOperands are dd's key=value operands. Counts are in blocks of bs bytes.
type ddOperands struct {
	in, out           string
	bs                int
	count, skip, seek int64
	opat, ipat, sync  bool
	mismatch          int // stop after so many wrong words; 0: report all of them up to maxWordReports
}

const (
	defaultDDBlock = 1 << 20
	maxDDBlock     = 64 << 20
	maxWordReports = 1 << 20
)

func (a *app) ddCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "dd if=FROM of=TO [bs=SIZE] [count=N] [skip=N] [seek=N] [opat=1] [ipat=1] [mismatch=N] [conv=sync]",
		Short: "Copy between a logical unit and a file, or make and check lmdd's pattern",
		Long: `FROM and TO are a URL, a file, - (standard input or output), pattern:SEED (as a source: the stamps that iser
verify writes, generation 1) or internal (no data: as a source zeros or the pattern, as a target nothing).

  bs=SIZE      request size (1MiB)           count=N   blocks to copy (default: all)
  skip=N       blocks to skip in FROM        seek=N    blocks to skip in TO
  opat=1       fill each 4-byte word written with its byte offset in TO, as lmdd does
  ipat=1       check that each word read is its byte offset in FROM; report off= want= got=
  mismatch=N   with ipat: stop after N wrong words
  conv=sync    fill a last partial block with zeros
` + urlHelp,
		Example: "  iser dd if=internal of=iser://10.0.0.1 bs=64k count=1024 opat=1\n" +
			"  iser dd if=iser://10.0.0.1 of=internal bs=64k count=1024 ipat=1 mismatch=10\n" +
			"  iser dd if=disk.img of=iscsi://10.0.0.1/iqn.2026-01.example:disk1/0",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := parseDD(args)
			if err != nil {
				return usage(err)
			}
			return a.dd(cmd.Context(), o)
		},
	}
}

func parseDD(args []string) (ddOperands, error) {
	o := ddOperands{bs: defaultDDBlock, count: -1}
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		if !ok {
			return o, fmt.Errorf("operand %q: want key=value, for example if=FILE", dial.Redact(arg))
		}
		if err := o.set(k, v); err != nil {
			return o, fmt.Errorf("%s: %w", dial.Redact(arg), err)
		}
	}
	if o.in == "" || o.out == "" {
		return o, errors.New("want if= and of=")
	}
	return o, nil
}

func (o *ddOperands) set(k, v string) (err error) {
	switch k {
	case "if":
		o.in = v
	case "of":
		o.out = v
	case "bs":
		n, err := backstore.ParseSize(v)
		if err != nil {
			return err
		}
		if n < 512 || n > maxDDBlock || n%512 != 0 {
			return fmt.Errorf("want a multiple of 512 bytes up to %s", humanize.IBytes(maxDDBlock))
		}
		o.bs = int(n)
	case "count":
		o.count, err = blocks(v)
	case "skip":
		o.skip, err = blocks(v)
	case "seek":
		o.seek, err = blocks(v)
	case "mismatch":
		var n int64
		n, err = blocks(v)
		o.mismatch = int(min(n, maxWordReports))
	case "opat":
		o.opat, err = flag(v)
	case "ipat":
		o.ipat, err = flag(v)
	case "conv":
		if v != "sync" {
			return errors.New("only conv=sync is known")
		}
		o.sync = true
	default:
		return errors.New("unknown operand; see iser dd --help")
	}
	return err
}

// maxBlocks keeps block counts times maxDDBlock within an int64.
const maxBlocks = 1 << 36

func blocks(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > maxBlocks {
		return 0, fmt.Errorf("want a number from 0 to %d", int64(maxBlocks))
	}
	return n, nil
}

func flag(s string) (bool, error) {
	if s != "0" && s != "1" {
		return false, errors.New("want 0 or 1")
	}
	return s == "1", nil
}

// A ddResult is what dd did.
type ddResult struct {
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	WrongWords int     `json:"wrong_words"`
}

func (a *app) dd(ctx context.Context, o ddOperands) error {
	src, err := a.openSource(ctx, o)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := a.openSink(ctx, o)
	if err != nil {
		return err
	}
	c := &copier{o: o, src: src, dst: dst, report: a.errOut, bar: a.progress("dd", total(o, src))}
	start := time.Now()
	err = c.run(ctx)
	c.bar.finish()
	if cerr := dst.close(); err == nil {
		err = cerr
	}
	res := ddResult{c.done, time.Since(start).Seconds(), c.wrong}
	if a.json() {
		if err := a.printJSON(res); err != nil {
			return err
		}
	} else {
		a.note("%d bytes (%s), %.3f s, %s/s", res.Bytes, humanize.IBytes(uint64(res.Bytes)), res.Seconds, rate(res.Bytes, res.Seconds))
	}
	if err != nil {
		return fmt.Errorf("dd: %w", err)
	}
	if c.wrong > 0 {
		return coded(exitMismatch, fmt.Errorf("dd: %d wrong words", c.wrong))
	}
	return nil
}

// total is how many bytes will be copied, 0 if that is not known.
func total(o ddOperands, src ddSource) int64 {
	n := max(src.size()-o.skip*int64(o.bs), 0)
	if o.count >= 0 && (n == 0 || o.count*int64(o.bs) < n) {
		n = o.count * int64(o.bs)
	}
	return n
}

// A copier moves blocks one after the other.
type copier struct {
	o      ddOperands
	src    ddSource
	dst    ddSink
	report io.Writer
	bar    *progress
	done   int64
	wrong  int
}

var errTooManyWrong = errors.New("mismatch= reached")

func (c *copier) run(ctx context.Context) error {
	buf := make([]byte, c.o.bs)
	for i := int64(0); c.o.count < 0 || i < c.o.count; i++ {
		n, err := c.src.read(ctx, buf, (c.o.skip+i)*int64(c.o.bs))
		if n == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := c.block(ctx, buf, n, i); err != nil {
			if errors.Is(err, errTooManyWrong) {
				return nil
			}
			return err
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

func (c *copier) block(ctx context.Context, buf []byte, n int, i int64) error {
	if c.o.ipat {
		if err := c.checkWords(buf[:n], (c.o.skip+i)*int64(c.o.bs)); err != nil {
			return err
		}
	}
	to := (c.o.seek + i) * int64(c.o.bs)
	if c.o.opat {
		fillWords(buf[:n], to)
	}
	if n < len(buf) && c.o.sync {
		clear(buf[n:])
		n = (n + 511) &^ 511
	}
	if err := c.dst.write(ctx, buf[:n], to); err != nil {
		return err
	}
	c.done += int64(n)
	c.bar.update(c.done)
	return nil
}
