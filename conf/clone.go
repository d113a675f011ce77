package conf

import (
	"maps"
	"slices"
)

// Clone copies a configuration, so that what is changed in the copy is not changed in c. Credentials and negotiation
// flags are shared: nobody writes to them, they are replaced.
func (c *Config) Clone() *Config {
	n := *c
	n.SecretFiles = maps.Clone(c.SecretFiles)
	n.Portals = slices.Clone(c.Portals)
	n.Warnings = slices.Clone(c.Warnings)
	n.Backstores = slices.Clone(c.Backstores)
	for i := range n.Backstores {
		n.Backstores[i].Options = maps.Clone(n.Backstores[i].Options)
	}
	n.Targets = slices.Clone(c.Targets)
	for i := range n.Targets {
		n.Targets[i] = n.Targets[i].clone()
	}
	return &n
}

func (t *Target) clone() Target {
	n := *t
	n.LUNs = slices.Clone(t.LUNs)
	n.Allow, n.AllowFrom = slices.Clone(t.Allow), slices.Clone(t.AllowFrom)
	n.Initiators = slices.Clone(t.Initiators)
	for i := range n.Initiators {
		n.Initiators[i].LUNs = slices.Clone(n.Initiators[i].LUNs)
	}
	n.Groups, n.ALUA = slices.Clone(t.Groups), slices.Clone(t.ALUA)
	if t.Redirect != nil {
		r := *t.Redirect
		r.Groups = slices.Clone(r.Groups)
		n.Redirect = &r
	}
	return n
}
