package conf

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goiser/goiser/scsi"
)

// accessStates are the states that a portal group can be configured with.
var accessStates = [...]scsi.AccessState{scsi.Optimized, scsi.NonOptimized, scsi.Standby, scsi.Unavailable}

// alua reads `{1: optimized, 2: standby}`: portal groups and their access states.
func (r *reader) alua(to *[]scsi.PortGroup) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		for _, p := range r.pairs(n, path) {
			group, err := strconv.ParseUint(p.key, 10, 16)
			if err != nil || strconv.FormatUint(group, 10) != p.key || group == 0 {
				r.failf(p.tok, p.path, "%q is no portal group; they go from 1 to %d", p.key, maxGroup)
				continue
			}
			word, _ := r.scalar(p.value)
			i := slices.IndexFunc(accessStates[:], func(s scsi.AccessState) bool { return s.String() == word })
			if i < 0 {
				r.wrong(p.value, p.path, "optimized, non-optimized, standby or unavailable")
				continue
			}
			*to = append(*to, scsi.PortGroup{ID: uint16(group), State: accessStates[i]})
		}
	}
}

// alua finds portal groups through which the target is not served.
func (k *checker) alua(path string, t *Target) {
	for _, g := range t.ALUA {
		if group := int(g.ID); !k.known[group] || !t.served(group) {
			k.failf(fmt.Sprintf("%s/%d", path, group), "the target is not served through portal group %d", group)
		}
	}
}

// PortGroups are the target port groups of a target: the portal groups through which it is served, with
// their access states.
func (c *Config) PortGroups(t *Target) []scsi.PortGroup {
	var groups []scsi.PortGroup
	for _, p := range c.Portals {
		g := scsi.PortGroup{ID: uint16(p.Group)}
		if !t.served(p.Group) || slices.ContainsFunc(groups, func(h scsi.PortGroup) bool { return h.ID == g.ID }) {
			continue
		}
		if i := slices.IndexFunc(t.ALUA, func(h scsi.PortGroup) bool { return h.ID == g.ID }); i >= 0 {
			g.State = t.ALUA[i].State
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b scsi.PortGroup) int { return int(a.ID) - int(b.ID) })
	return groups
}
