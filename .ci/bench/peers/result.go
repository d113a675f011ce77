package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A result is everything that was measured.
type result struct {
	Date     time.Time         `json:"date"`
	Machine  string            `json:"machine"`
	Load     [2]float64        `json:"load_average"` // of a minute, before the first round and after the last
	Versions map[string]string `json:"versions"`
	Plan     plan              `json:"plan"`
	Rounds   int               `json:"rounds"`
	Series   []series          `json:"series"`
	Memory   []memory          `json:"memory"`
}

// A series is the samples of one subject with one workload, a round each.
type series struct {
	Subject  string   `json:"subject"`
	Workload string   `json:"workload"`
	Samples  []sample `json:"samples"`
	Error    string   `json:"error,omitempty"` // the last one
}

// memory is that of a target, in bytes.
type memory struct {
	Subject string `json:"subject"`
	Peak    int64  `json:"peak_bytes"`
	// Idle is what a session adds that does nothing; 0: not known.
	Idle float64 `json:"idle_session_bytes"`
}

func (r *result) json(f *os.File) error {
	e := json.NewEncoder(f)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// find is the series of a subject with a workload; nil if there are no samples.
func (r *result) find(subject, workload string) *series {
	for i := range r.Series {
		if s := &r.Series[i]; s.Subject == subject && s.Workload == workload && len(s.Samples) > 0 {
			return s
		}
	}
	return nil
}

// A metric is one figure of a sample.
type metric func(sample) float64

func iops(s sample) float64      { return s.IOPS }
func mbs(s sample) float64       { return s.MBs }
func p50(s sample) float64       { return s.P50 }
func mean(s sample) float64      { return s.Mean }
func targetCPU(s sample) float64 { return s.TargetCPU }

// A spread is the median of a metric, and its least and most.
type spread struct{ median, least, most float64 }

func (s *series) of(m metric) spread {
	vs := make([]float64, len(s.Samples))
	for i, x := range s.Samples {
		vs[i] = m(x)
	}
	return spreadOf(vs)
}

func spreadOf(vs []float64) spread {
	slices.Sort(vs)
	n := len(vs)
	return spread{(vs[(n-1)/2] + vs[n/2]) / 2, vs[0], vs[n-1]}
}

// ratio divides round by round: what disturbs a round disturbs both. Rounds that one of them lacks are left out.
func ratio(a, b *series, m metric) (spread, bool) {
	if a == nil || b == nil {
		return spread{}, false
	}
	of := make(map[int]sample)
	for _, s := range b.Samples {
		of[s.Round] = s
	}
	var vs []float64
	for _, s := range a.Samples {
		if d := m(of[s.Round]); d > 0 {
			vs = append(vs, m(s)/d)
		}
	}
	if len(vs) == 0 {
		return spread{}, false
	}
	return spreadOf(vs), true
}

// idleSessions is how many a target's memory is divided by.
const idleSessions = 16

// memory measures the servers: their peak so far, and what idle sessions add.
func (b *bed) memory(ctx context.Context) (ms []memory) {
	for _, s := range b.subjects {
		m := memory{Subject: s.name}
		var err error
		if s.client[0] == b.load[0] {
			m.Peak, err = s.server.status("VmHWM")
		}
		if err == nil && s.name != "iserd ram, our client" { // the same server as before, over TCP as before
			m.Idle, err = b.idle(ctx, s)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "memory of %s: %v\n", s.name, err)
			continue
		}
		if m.Peak > 0 || m.Idle > 0 {
			ms = append(ms, m)
		}
	}
	return ms
}

// idle is by how much idle sessions make a server grow, each.
func (b *bed) idle(ctx context.Context, s *subject) (float64, error) {
	before, err := s.server.status("VmRSS")
	if err != nil {
		return 0, err
	}
	args := append(s.client[1:len(s.client):len(s.client)], "-q", "0", "-t", "2", "-s", fmt.Sprint(idleSessions), s.url+fmt.Sprint(s.lun))
	c := exec.CommandContext(ctx, s.client[0], args...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	ready := make([]byte, len("ready\n"))
	_, err = io.ReadFull(out, ready)
	after, err2 := s.server.status("VmRSS")
	_, _ = io.Copy(io.Discard, out)
	if werr := c.Wait(); err == nil {
		err = werr
	}
	if err == nil {
		err = err2
	}
	return float64(after-before) / idleSessions, err
}

// loadAverage is how many processes wanted a processor in the last minute; 0 if that is not known.
func loadAverage() (load float64) {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &load)
	}
	return load
}

// machine says where this was measured.
func machine() string {
	model, kernel := "unknown processor", "unknown kernel"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimLeft(name, " \t:"))
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(text))
	}
	return fmt.Sprintf("%d cores of %s, Linux %s", runtime.NumCPU(), model, kernel)
}
