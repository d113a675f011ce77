package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a process may take to start or to end.
const patience = 10 * time.Second

// A process is a server that we have started.
type process struct {
	cmd *exec.Cmd
	log *output
}

// output keeps what a process says.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// spawn starts a program that runs until stop.
func spawn(env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), log: new(output)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	return p, p.cmd.Start()
}

// stop ends it, by force where it does not want to: stgt ignores SIGTERM while it has targets.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	force := time.AfterFunc(patience/5, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait() // what it says of a signal is of no interest
	force.Stop()
}

// cpu is the processor time that it has used so far, of all its threads.
func (p *process) cpu() (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has just ended
		}
		ns, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		total += time.Duration(n)
	}
	return total, nil
}

// status is a line of /proc/PID/status, in bytes.
func (p *process) status(field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d: no %s", p.cmd.Process.Pid, field)
}

// command runs a program to its end and returns what it says.
func command(ctx context.Context, name string, args ...string) (string, error) {
	var errs bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(errs.Bytes()))
	}
	return string(out), nil
}

// until tries again until it succeeds, as a server that has just been started takes its time.
func until(ctx context.Context, p *process, try func() error) error {
	end := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not start: %w: %s", p.cmd.Path, err, p.log)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
