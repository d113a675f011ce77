package main

import (
	"fmt"

	"github.com/goiser/goiser/cmd/packets"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/spf13/cobra"
)

// packetFlags say whether the packets of a command go to a file.
type packetFlags struct {
	path, limit string
	limitBytes  int64
	file        *packets.File // nil: nobody has connected yet, or wants it
}

func (p *packetFlags) register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&p.path, "pcap", "", "over our own RoCE, write the packets to this `FILE` as pcapng, for iser trace read and Wireshark (docs/TRACE.md)")
	f.StringVar(&p.limit, "pcap-limit", packets.DefaultLimit, "stop the file at this `SIZE`; 0: never")
}

func (p *packetFlags) check() (err error) {
	if p.limitBytes, err = packets.ParseLimit(p.limit); err != nil {
		return usage(fmt.Errorf("--pcap-limit %q: %w", p.limit, err))
	}
	return nil
}

// start makes the file, and has the packets of a provider written to it.
func (p *packetFlags) start(q *provider.Provider) (err error) {
	if p.path == "" {
		return nil
	}
	if p.file, err = packets.NewFile(p.path, p.limitBytes, "iser "+version); err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	if err := p.file.Add(q); err != nil {
		return usage(fmt.Errorf("--pcap: %w", err))
	}
	return nil
}

// stop ends the file and says what is in it.
func (p *packetFlags) stop(a *app) error {
	if p.file == nil {
		return nil
	}
	n, err := p.file.Stop()
	if err != nil {
		return fmt.Errorf("--pcap %s: %w", p.path, err)
	}
	a.note("%s: %s", p.path, packets.Note(n))
	return nil
}
