package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goiser/goiser/cmd/dissect"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/spf13/cobra"
)

func (a *app) traceCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "trace",
		Short: "Capture packets, and read captures",
		Long:  "Packets are captured with --pcap, of this command and of iserd, and by a running iserd with start and stop.",
	}
	c.AddCommand(&cobra.Command{
		Use:   "read FILE",
		Short: "List the packets of a capture, with iSER and iSCSI in words",
		Long: `Prints a line for each RoCEv2 packet of a pcapng or pcap file, ours or tcpdump's ("-" is standard input): seconds
since the first, direction (of our own captures), the receiving queue pair, packet sequence number, operation, and what
it carries. With -o json it prints an object a line, with the addresses too.`,
		Args: exactArgs(1, "one FILE"),
		RunE: func(_ *cobra.Command, args []string) error { return a.traceRead(args[0]) },
	})
	c.AddCommand(a.captureCmds()...)
	return c
}

func (a *app) traceRead(name string) error {
	f := os.Stdin
	if name != "-" {
		var err error
		if f, err = os.Open(name); err != nil {
			return err
		}
		defer f.Close()
	}
	out := bufio.NewWriter(a.out)
	err := a.listPackets(out, f)
	if ferr := out.Flush(); err == nil {
		err = ferr
	}
	if errors.Is(err, io.ErrUnexpectedEOF) { // what was whole has been listed
		return fmt.Errorf("%s ends within a packet: it is still being written, or its writer was killed", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// listPackets lists a capture.
func (a *app) listPackets(out io.Writer, in io.Reader) error {
	r, err := capture.NewReader(in)
	if err != nil {
		return err
	}
	d := dissect.New()
	enc := json.NewEncoder(out)
	var first time.Time
	others := 0
	for {
		var c capture.Packet
		if err := r.Next(&c); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		p, ok := d.Packet(&c)
		if !ok {
			others++
			continue
		}
		if first.IsZero() {
			first = p.Time
		}
		if a.json() {
			err = enc.Encode(p)
		} else {
			_, err = fmt.Fprintln(out, packetLine(&p, p.Time.Sub(first)))
		}
		if err != nil {
			return err
		}
	}
	if others > 0 {
		a.note("%d packets are not RoCEv2", others)
	}
	return nil
}

// packetLine is a packet in a line.
func packetLine(p *dissect.Packet, at time.Duration) string {
	who := p.Direction
	if who == "" {
		who = p.Src + " > " + p.Dst
	}
	line := fmt.Sprintf("%12.9f %-3s QP 0x%06x PSN %-8d %s", at.Seconds(), who, p.QP, p.PSN, p.Opcode)
	if p.Summary != "" {
		line += ": " + p.Summary
	} else if p.Bytes > 0 {
		line += fmt.Sprintf(": %d bytes", p.Bytes)
	}
	if p.Problem != "" {
		line += " [" + p.Problem + "]"
	}
	if p.Lost > 0 {
		line = fmt.Sprintf("%12s %d packets are missing here\n", "", p.Lost) + line
	}
	return line
}
