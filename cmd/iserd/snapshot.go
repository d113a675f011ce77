package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/metrics"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
)

// snapshot is what the service is now. Config is for who owns the configuration to fill in.
func (s *service) snapshot() admin.Snapshot {
	sessions := s.server.Sessions()
	pairs := s.queuePairs()
	stats := s.server.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := admin.Snapshot{
		Time: time.Now(), Since: s.since, Version: version, Config: admin.Config{Warnings: []string{}},
		Portals: []admin.Portal{}, Backstores: []admin.Backstore{}, Targets: []admin.Target{},
		Sessions: []admin.Session{}, Providers: s.providersLocked(),
		Stats:   metrics.Stats(stats),
		Buffers: admin.Buffers{TotalBytes: stats.Buffers, FreeBytes: stats.FreeBuffers},
	}
	byTarget, byPortal := map[string]int{}, map[string]int{}
	for _, ses := range sessions {
		byTarget[ses.Target]++
		byPortal[ses.Portal]++
		snap.Sessions = append(snap.Sessions, sessionOf(ses, pairs))
	}
	used := s.usersLocked()
	for _, p := range s.portals {
		snap.Portals = append(snap.Portals, portalOf(p, byPortal))
	}
	for _, st := range s.stores {
		snap.Backstores = append(snap.Backstores, backstoreOf(st, used[st.conf.Name]))
	}
	slices.SortFunc(snap.Backstores, func(a, b admin.Backstore) int { return cmp.Compare(a.Name, b.Name) })
	for _, t := range s.targets {
		snap.Targets = append(snap.Targets, targetOf(t, byTarget[string(t.conf.Name)]))
	}
	slices.SortFunc(snap.Targets, func(a, b admin.Target) int { return cmp.Compare(a.Name, b.Name) })
	return snap
}

// usersLocked says of each store what uses it.
func (s *service) usersLocked() map[string][]string {
	used := map[string][]string{}
	for _, t := range s.targets {
		for _, l := range t.conf.LUNs {
			used[l.Store] = append(used[l.Store], fmt.Sprintf("%s/%d", t.conf.Name, l.Number))
		}
	}
	for _, st := range s.stores {
		if below, wraps := backstore.Wraps(st.conf.Type, st.conf.Options); wraps {
			used[below] = append(used[below], st.conf.Name)
		}
	}
	for _, list := range used {
		slices.Sort(list)
	}
	return used
}

func portalOf(p *servedPortal, sessions map[string]int) admin.Portal {
	v := admin.Portal{
		Listen: p.conf.Listen.String(), Address: p.listeners[0].Addr().String(), Provider: p.conf.Provider, RDMA: p.rdma, Group: p.conf.Group,
	}
	if p.conf.Advertise.IsValid() {
		v.Advertise = p.conf.Advertise.String()
	}
	if p.conf.External.IsValid() {
		v.External = p.conf.External.String()
	}
	v.Sessions = sessions[v.Address]
	return v
}

func backstoreOf(st *openedStore, users []string) admin.Backstore {
	i := st.Info()
	return admin.Backstore{
		Name: st.conf.Name, Type: st.conf.Type, Options: st.conf.Options, SizeBytes: i.SizeBytes, ReadOnly: i.ReadOnly,
		Volatile: i.Volatile, WriteCache: i.WriteCache, UsedBy: append([]string{}, users...),
	}
}

func targetOf(t *servedTarget, sessions int) admin.Target {
	c := &t.conf
	v := admin.Target{
		Name: string(c.Name), Alias: c.Alias, Enabled: !c.Disabled, Groups: c.Groups, Allow: allowed(c), LUNs: []admin.LUN{}, Sessions: sessions,
	}
	if c.Redirect != nil {
		v.Redirect = c.Redirect.To
	}
	if c.Auth != nil {
		v.Auth = c.Auth.User
	}
	for _, l := range c.LUNs {
		lu := t.dev.LU(l.Number)
		if lu == nil {
			continue // it is on its way out
		}
		n := lu.Stats()
		v.LUNs = append(v.LUNs, admin.LUN{
			Number: l.Number, Backstore: l.Store, SizeBytes: int64(lu.Blocks()) * int64(lu.BlockSize()), BlockSize: lu.BlockSize(),
			ReadOnly: l.ReadOnly || lu.Store().Info().ReadOnly,
			Commands: n.Commands, ReadBytes: n.ReadBytes, WrittenBytes: n.WrittenBytes, Errors: n.Errors,
		})
	}
	return v
}

// allowed lists who may log in, as the configuration has it: names, networks, and names with an entry of their own.
func allowed(t *conf.Target) []string {
	list := []string{}
	for _, n := range t.Allow {
		list = append(list, string(n))
	}
	for _, p := range t.AllowFrom {
		list = append(list, p.String())
	}
	for _, i := range t.Initiators {
		if name := string(i.Name); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

func sessionOf(i target.SessionInfo, pairs map[string]*admin.QueuePair) admin.Session {
	v := admin.Session{
		ID: i.TSIH, Initiator: i.Initiator, Target: i.Target, Transport: i.Transport, Remote: i.Remote, Portal: i.Portal,
		Connections: i.Connections, Since: i.Since, Keys: keys(&i.Params), Commands: i.Commands, InFlight: i.InFlight,
		ReadBytes: i.ReadBytes, WrittenBytes: i.WrittenBytes, Errors: i.Errors, Rejects: i.Rejects, Dropped: i.Dropped,
	}
	if i.Transport == "iser" {
		v.QueuePair = pairs[i.Remote]
	}
	return v
}

// keys are what a session has negotiated, as RFC 7143, 13, spells them.
func keys(p *iscsi.Params) map[string]string {
	yesNo := func(on bool) string {
		if on {
			return "Yes"
		}
		return "No"
	}
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	return map[string]string{
		"InitialR2T": yesNo(p.InitialR2T), "ImmediateData": yesNo(p.ImmediateData),
		"FirstBurstLength": number(p.FirstBurstLength), "MaxBurstLength": number(p.MaxBurstLength),
		"MaxOutstandingR2T": number(p.MaxOutstandingR2T), "MaxConnections": number(p.MaxConnections),
	}
}

// roceProviders are our own RoCE of a provider.
func roceProviders(p any) (list []*roce.Provider) {
	if c, ok := p.(*provider.Provider); ok {
		if r := c.RoCE(); r != nil {
			return []*roce.Provider{r}
		}
	}
	return nil
}

// queuePairs are the queue pairs of our own RoCE by their peer's address.
func (s *service) queuePairs() map[string]*admin.QueuePair {
	s.mu.Lock()
	var list []*roce.Provider
	for _, p := range s.providers {
		list = append(list, roceProviders(p)...)
	}
	s.mu.Unlock()
	pairs := map[string]*admin.QueuePair{}
	for _, p := range list {
		for _, q := range p.QueuePairs() {
			pairs[q.Remote.String()] = &admin.QueuePair{
				Number: q.Num, Local: q.Local.String(), Remote: q.Remote.String(), Counters: pairCounters(&q.Counters),
			}
		}
	}
	return pairs
}

func (s *service) providersLocked() []admin.Provider {
	list := []admin.Provider{}
	for key, p := range s.providers {
		v := admin.Provider{Name: key.name, Used: p.Name(), Counters: map[string]uint64{}}
		if c, ok := p.(*provider.Provider); ok {
			v.Used = c.Used()
		}
		for _, r := range roceProviders(p) {
			v.Counters = metrics.RDMA(r)
			v.QueuePairs += len(r.QueuePairs())
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b admin.Provider) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func pairCounters(c *rc.Counters) map[string]uint64 {
	return map[string]uint64{
		"sent": c.Sent, "received": c.Received, "retransmits": c.Retransmits, "timeouts": c.Timeouts,
		"duplicates": c.Duplicates, "out_of_order": c.OutOfOrder, "naks_sent": c.NaksSent, "naks_received": c.NaksReceived,
		"rnr_naks_sent": c.RNRNaksSent, "rnr_naks_received": c.RNRNaksReceived, "dropped": c.Dropped,
	}
}
