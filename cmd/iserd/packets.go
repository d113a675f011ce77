package main

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/cmd/packets"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/sirupsen/logrus"
)

// openPackets makes the file of --pcap, if it is wanted, and an opener whose providers' packets go to it.
func (a *app) openPackets(log logrus.FieldLogger, open opener) (_ opener, closeFile func(), err error) {
	limit, err := packets.ParseLimit(a.flags.pcapLimit)
	if err != nil {
		return nil, nil, usagef("--pcap-limit %q: %w", a.flags.pcapLimit, err)
	}
	if a.flags.pcap == "" {
		return open, func() {}, nil
	}
	f, err := packets.NewFile(a.flags.pcap, limit, "iserd "+version)
	if err != nil {
		return nil, nil, fmt.Errorf("--pcap: %w", err)
	}
	watched := func(p conf.Portal) (rdma.Provider, error) {
		rp, err := open(p)
		if err != nil {
			return nil, err
		}
		if q, ok := rp.(*provider.Provider); ok {
			if err := f.Add(q); err != nil {
				return nil, errors.Join(usagef("--pcap: %w", err), q.Close())
			}
		}
		return rp, nil
	}
	return watched, func() {
		n, err := f.Stop()
		if err != nil {
			log.WithField("err", err).Warnf("packets in %s: some may be missing", a.flags.pcap)
			return
		}
		log.Infof("packets in %s: %s", a.flags.pcap, packets.Note(n))
	}, nil
}
