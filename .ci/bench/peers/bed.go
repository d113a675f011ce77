package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The stores: one of diskSize, and manyLUNs small ones after it. Files lie in memory (tmpfs), so that no disk is measured.
const (
	diskSize  = 512 << 20
	smallSize = 64 << 20
	manyLUNs  = 16
)

// A subject is a target with a kind of store, as one client sees it. The first LUN is the disk, those after it the small
// ones.
type subject struct {
	name   string
	server *process
	client []string // program and first arguments
	url    string   // up to the LUN
	lun    int
	fits   func(workload) bool
}

// bare are the sockets without a target.
var bare = &subject{name: "bare sockets"}

// A bed has the targets running.
type bed struct {
	plan     plan
	dir      string // on tmpfs
	load     []string
	ours     []string
	subjects []*subject
	servers  []*process
	versions map[string]string
}

// newBed builds and starts everything. What comes back is to be closed also after an error.
func newBed(ctx context.Context, p plan) (*bed, error) {
	dir, err := os.MkdirTemp("/dev/shm", "bench-peers-")
	if err != nil {
		return nil, fmt.Errorf("the stores need a file system in memory: %w", err)
	}
	b := &bed{plan: p, dir: dir, versions: map[string]string{"go": runtime.Version()}}
	if err := b.build(ctx); err != nil {
		return b, err
	}
	if err := b.fill(); err != nil {
		return b, err
	}
	if err := b.startISERD(ctx); err != nil {
		return b, err
	}
	if err := b.startSTGT(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "without stgt:", err)
	}
	if err := b.startGOTGT(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "without gotgt:", err)
	}
	b.order()
	return b, nil
}

func (b *bed) close() error {
	for _, s := range b.servers {
		s.stop()
	}
	return os.RemoveAll(b.dir)
}

func (b *bed) file(name string) string { return filepath.Join(b.dir, name) }

// build makes the programs.
func (b *bed) build(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.ours = []string{self, "load"}
	b.load = []string{b.file("load")}
	if _, err := command(ctx, "gcc", "-O2", "-o", b.load[0], ".ci/bench/load.c", "-liscsi"); err != nil {
		return fmt.Errorf("the client needs gcc and libiscsi-dev (apt-get install gcc libc6-dev libiscsi-dev tgt): %w", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", b.dir, "./cmd/iserd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build iserd: %w: %s", err, out)
	}
	if v, err := command(ctx, "git", "describe", "--tags", "--always", "--dirty"); err == nil {
		b.versions["iserd"] = strings.TrimSpace(v)
	}
	return nil
}

// fill writes the files: a hole would not be read as data is.
func (b *bed) fill() error {
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block) // it never fails
	write := func(name string, size int) error {
		return writeFile(b.file(name), func(f *os.File) error {
			for n := 0; n < size; n += len(block) {
				if _, err := f.Write(block); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := write("disk", diskSize)
	for i := range manyLUNs {
		err = errors.Join(err, write(small(i), smallSize))
	}
	return err
}

func small(i int) string { return fmt.Sprintf("small%d", i) }

// freePort is a TCP port that nobody has at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// add makes a subject of a server with the disk at LUN first.
func (b *bed) add(name string, server *process, client []string, url string, first int, fits func(workload) bool) {
	b.subjects = append(b.subjects, &subject{name: name, server: server, client: client, url: url, lun: first, fits: fits})
}

func anything(workload) bool { return true }

func oneLUN(w workload) bool { return w.LUNs == 1 }

// oneSession is for our client, which is measured by itself.
func oneSession(w workload) bool { return w.LUNs == 1 && w.Sessions == 1 }

// iserdConfig has a process for each kind of store, so that its memory and CPU time are of that kind.
func (b *bed) iserdConfig(kind, listen string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "version: 1\nportals: [{listen: %q, provider: roce}]\nbackstores:\n", listen)
	store := func(lun int, file string, size int) {
		if kind == "file" {
			fmt.Fprintf(&s, "  s%d: {type: file, path: %q}\n", lun, b.file(file))
		} else {
			fmt.Fprintf(&s, "  s%d: {type: ram, size: %d}\n", lun, size)
		}
	}
	store(0, "disk", diskSize)
	for i := range manyLUNs {
		store(1+i, small(i), smallSize)
	}
	s.WriteString("targets:\n  iqn.2026-01.local.bench:iserd:\n    luns:\n")
	for i := range 1 + manyLUNs {
		fmt.Fprintf(&s, "      %d: s%d\n", i, i)
	}
	return s.String()
}

// startISERD starts ours, each at a loopback address of its own, since RoCE has one UDP port.
func (b *bed) startISERD(ctx context.Context) error {
	for i, kind := range []string{"file", "ram"} {
		addr := netip.AddrFrom4([4]byte{127, byte(os.Getpid() >> 8), byte(os.Getpid()), byte(10 + i)})
		config := b.file(kind + ".yaml")
		if err := os.WriteFile(config, []byte(b.iserdConfig(kind, netip.AddrPortFrom(addr, 0).String())), 0o600); err != nil {
			return err
		}
		s, err := spawn(nil, b.file("iserd"), "--config", config)
		if err != nil {
			return err
		}
		b.servers = append(b.servers, s)
		var portal string
		if err := until(ctx, s, func() error {
			_, rest, found := strings.Cut(s.log.String(), "listening on ")
			portal, _, _ = strings.Cut(rest, ",")
			if !found {
				return errors.New("it does not listen")
			}
			return nil
		}); err != nil {
			return err
		}
		tail := portal + "/iqn.2026-01.local.bench:iserd/"
		b.add("iserd "+kind, s, b.load, "iscsi://"+tail, 0, anything)
		if kind == "ram" {
			b.add("iserd ram, our client", s, b.ours, "iscsi://"+tail, 0, oneSession)
			b.add("iserd ram, our client, iSER", s, b.ours, "iser://"+tail, 0, oneSession)
		}
	}
	return nil
}

// startSTGT starts two tgtd, one with files and one with its null stores.
func (b *bed) startSTGT(ctx context.Context) error {
	if v, err := command(ctx, "tgtd", "--version"); err == nil {
		b.versions["stgt"] = strings.TrimSpace(v)
	}
	for i, kind := range []string{"file", "null"} {
		port, err := freePort()
		if err != nil {
			return err
		}
		control := fmt.Sprint(1000 + (os.Getpid()*2+i)%30000) // of the socket that tgtadm finds it by
		s, err := spawn(nil, "tgtd", "-f", "-d", "0", "-C", control, "--iscsi", fmt.Sprintf("portal=127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		b.servers = append(b.servers, s)
		admin := func(args ...string) error {
			_, err := command(ctx, "tgtadm", append([]string{"-C", control, "--lld", "iscsi"}, args...)...)
			return err
		}
		if err := until(ctx, s, func() error {
			return admin("--op", "new", "--mode", "target", "--tid", "1", "-T", "iqn.2026-01.local.bench:stgt")
		}); err != nil {
			return err
		}
		unit := func(lun int, file string) error {
			args := []string{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", fmt.Sprint(lun), "-b", b.file(file)}
			if kind == "null" {
				args = append(args, "--bstype", "null")
			}
			return admin(args...)
		}
		err = unit(1, "disk") // LUN 0 is stgt's controller
		for i := range manyLUNs {
			err = errors.Join(err, unit(2+i, small(i)))
		}
		if err = errors.Join(err, admin("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL")); err != nil {
			return err
		}
		b.add("stgt "+kind, s, b.load, fmt.Sprintf("iscsi://127.0.0.1:%d/iqn.2026-01.local.bench:stgt/", port), 1, anything)
	}
	return nil
}

// gotgtVersion is the only one that can be fetched.
const gotgtVersion = "v0.2.2"

// startGOTGT builds gotgt outside our module, of which it is no part, and starts it with the disk as a file.
func (b *bed) startGOTGT(ctx context.Context) error {
	module := b.file("gotgt-module")
	home := b.file("gotgt-home")
	if err := errors.Join(os.Mkdir(module, 0o755), os.MkdirAll(filepath.Join(home, ".gotgt"), 0o755)); err != nil {
		return err
	}
	mod := "module peer\n\ngo 1.26.0\n\nrequire github.com/gostor/gotgt " + gotgtVersion + "\n\ntool github.com/gostor/gotgt\n"
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(mod), 0o600); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", b.file("gotgt"), "github.com/gostor/gotgt")
	build.Dir = module
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build it: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"storages":     []any{map[string]any{"deviceID": 1000, "path": "file:" + b.file("disk"), "online": true}},
		"iscsiportals": []any{map[string]any{"id": 0, "portal": fmt.Sprintf("127.0.0.1:%d", port)}},
		"iscsitargets": map[string]any{"iqn.2026-01.local.bench:gotgt": map[string]any{
			"tpgts": map[string]any{"1": []int{0}}, "luns": map[string]any{"0": 1000},
		}},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".gotgt", "config.json"), config, 0o600)
	}
	if err != nil {
		return err
	}
	s, err := spawn([]string{"HOME=" + home}, b.file("gotgt"), "daemon", "--log", "fatal", "--port", fmt.Sprint(port))
	if err != nil {
		return err
	}
	b.servers = append(b.servers, s)
	if err := until(ctx, s, func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return c.Close()
	}); err != nil {
		return err
	}
	b.versions["gotgt"] = gotgtVersion
	b.add("gotgt file", s, b.load, fmt.Sprintf("iscsi://127.0.0.1:%d/iqn.2026-01.local.bench:gotgt/", port), 0, oneLUN)
	return nil
}

// order puts those beside each other that are compared.
func (b *bed) order() {
	var ordered []*subject
	for _, name := range columns {
		for _, s := range b.subjects {
			if s.name == name {
				ordered = append(ordered, s)
			}
		}
	}
	b.subjects = ordered
}

// A sample is one run. Times are microseconds.
type sample struct {
	Round     int     `json:"round"`
	IOPS      float64 `json:"iops"`
	MBs       float64 `json:"mb_per_s"`
	Mean      float64 `json:"mean_us"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	P999      float64 `json:"p999_us"`
	TargetCPU float64 `json:"target_cpu_us_per_io"`
	ClientCPU float64 `json:"client_cpu_us_per_io"`
}

// counted is what a client prints at its end.
type counted struct {
	Seconds float64 `json:"seconds"`
	IOs     float64 `json:"ios"` // measured
	All     float64 `json:"all"`
	CPU     float64 `json:"cpu"` // seconds, of All
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
}

// sample runs one workload.
func (b *bed) sample(ctx context.Context, x pair) (sample, error) {
	s, w := x.subject, x.workload
	ctx, cancel := context.WithTimeout(ctx, b.plan.Each+patience)
	defer cancel()
	args := []string{
		"-m", w.Mode, "-b", fmt.Sprint(w.Bytes), "-q", fmt.Sprint(w.Depth), "-t", fmt.Sprint(b.plan.Each.Seconds()),
		"-s", fmt.Sprint(w.Sessions), "-l", fmt.Sprint(w.LUNs),
	}
	if s == bare {
		out, err := command(ctx, b.ours[0], append([]string{"limit"}, args...)...)
		if err != nil {
			return sample{}, err
		}
		return parse(out, w, 0)
	}
	before, err := s.server.cpu()
	if err != nil {
		return sample{}, err
	}
	first := s.lun
	if w.LUNs > 1 {
		first++ // the small ones
	}
	args = append(args, s.url+fmt.Sprint(first))
	out, err := command(ctx, s.client[0], append(s.client[1:len(s.client):len(s.client)], args...)...)
	if err != nil {
		return sample{}, err
	}
	after, err := s.server.cpu()
	if err != nil {
		return sample{}, err
	}
	return parse(out, w, after-before)
}

// parse makes a sample of a client's last line.
func parse(out string, w workload, used time.Duration) (sample, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var c counted
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &c); err != nil {
		return sample{}, fmt.Errorf("%w in %q", err, out)
	}
	if c.IOs == 0 || c.Seconds <= 0 {
		return sample{}, errors.New("nothing completed")
	}
	return sample{
		IOPS: c.IOs / c.Seconds, MBs: c.IOs / c.Seconds * float64(w.Bytes) / 1e6,
		Mean: c.Mean, P50: c.P50, P99: c.P99, P999: c.P999,
		TargetCPU: float64(used.Nanoseconds()) / 1e3 / c.All, ClientCPU: c.CPU * 1e6 / c.All,
	}, nil
}
