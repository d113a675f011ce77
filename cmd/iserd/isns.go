package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi/isns"
)

// register keeps the targets registered with a name server, if there is one, until stopISNS.
func (s *service) register(c conf.ISNS) error {
	if c.Server == "" {
		return nil
	}
	if c.Entity == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("isns.entity: %w", err)
		}
		c.Entity = name
	}
	client := isns.New(isns.Config{Server: c.Server, Entity: c.Entity, Nodes: s.nodes, Log: s.log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Run(ctx)
	}()
	s.stopISNS = func() {
		cancel()
		<-done
	}
	return nil
}

// nodes are the targets as the name server shall know them.
func (s *service) nodes(here netip.Addr) []isns.Node {
	var list []isns.Node
	for _, p := range s.server.Publications(here) {
		n := isns.Node{Name: string(p.Name), Alias: p.Alias}
		for _, a := range p.Portals {
			n.Portals = append(n.Portals, isns.Portal{Addr: a.Addr, Group: a.Tag})
		}
		list = append(list, n)
	}
	return list
}
