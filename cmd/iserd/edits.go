package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// What single commands change in a configuration. Making what is there already is no change.

func differsError(what, is string) error {
	return &admin.Error{Message: "exists already, and differs: " + is, What: what, Todo: "change it, or take another name", Code: admin.CodeDiffers}
}

func badRequest(what, why, todo string) error {
	return &admin.Error{Message: why, What: what, Todo: todo, Code: admin.CodeUsage}
}

func addTargetEdit(name string, r admin.TargetRequest) edit {
	return func(c *conf.Config) error {
		n, err := iscsi.ParseName(name)
		if err != nil {
			return badRequest("target "+name, err.Error(), "give a name as iqn.2026-01.example:disk1")
		}
		if t, err := targetIn(c, name); err == nil {
			if t.Alias != r.Alias {
				return differsError("target "+name, fmt.Sprintf("its alias is %q", t.Alias))
			}
			return nil
		}
		c.Targets = append(c.Targets, conf.Target{Name: n, Alias: r.Alias, Negotiate: conf.DefaultNegotiate(), Auth: c.Auth})
		return nil
	}
}

func removeTargetEdit(name string) edit {
	return func(c *conf.Config) error {
		t, err := targetIn(c, name)
		if err != nil {
			return err
		}
		n := t.Name
		c.Targets = slices.DeleteFunc(c.Targets, func(t conf.Target) bool { return t.Name == n })
		return nil
	}
}

// onTarget edits a target that there is.
func onTarget(name string, e func(c *conf.Config, t *conf.Target) error) edit {
	return func(c *conf.Config) error {
		t, err := targetIn(c, name)
		if err != nil {
			return err
		}
		return e(c, t)
	}
}

func lunIndex(t *conf.Target, number int) int {
	return slices.IndexFunc(t.LUNs, func(l conf.LUN) bool { return l.Number == number })
}

func addLUNEdit(name string, number int, r admin.LUNRequest) edit {
	return onTarget(name, func(c *conf.Config, t *conf.Target) error {
		l := conf.LUN{Number: number, Store: r.Backstore, ReadOnly: r.ReadOnly, BlockSize: r.BlockSize}
		if l.BlockSize == 0 {
			l.BlockSize = conf.DefaultBlockSize
		}
		if err := knownStore(c, r.Backstore); err != nil {
			return err
		}
		if i := lunIndex(t, number); i >= 0 {
			if was := t.LUNs[i]; was != l {
				return differsError(fmt.Sprintf("LUN %d of %s", number, t.Name), fmt.Sprintf("it is backstore %s, %s, blocks of %d bytes", was.Store, modeOf(was.ReadOnly), was.BlockSize))
			}
			return nil
		}
		t.LUNs = append(t.LUNs, l)
		slices.SortFunc(t.LUNs, func(a, b conf.LUN) int { return a.Number - b.Number })
		return nil
	})
}

func knownStore(c *conf.Config, name string) error {
	if !slices.ContainsFunc(c.Backstores, func(b conf.Backstore) bool { return b.Name == name }) {
		return notFound("backstore "+name, "iser backstore list shows those that there are")
	}
	return nil
}

// onLUN edits a unit that there is.
func onLUN(name string, number int, e func(c *conf.Config, t *conf.Target, i int) error) edit {
	return onTarget(name, func(c *conf.Config, t *conf.Target) error {
		i := lunIndex(t, number)
		if i < 0 {
			return notFound(fmt.Sprintf("LUN %d of %s", number, t.Name), "iser target show "+string(t.Name)+" shows those that there are")
		}
		return e(c, t, i)
	})
}

func removeLUNEdit(name string, number int) edit {
	return onLUN(name, number, func(_ *conf.Config, t *conf.Target, i int) error {
		t.LUNs = slices.Delete(t.LUNs, i, i+1)
		for j := range t.Initiators { // a list of units that are seen must name some that there are
			in := &t.Initiators[j]
			in.LUNs = slices.DeleteFunc(in.LUNs, func(n int) bool { return n == number })
		}
		return nil
	})
}

func setLUNEdit(name string, number int, r admin.LUNSetRequest) edit {
	return onLUN(name, number, func(c *conf.Config, t *conf.Target, i int) error {
		l := &t.LUNs[i]
		if r.Backstore != nil {
			if err := knownStore(c, *r.Backstore); err != nil {
				return err
			}
			l.Store = *r.Backstore
		}
		if r.ReadOnly != nil {
			l.ReadOnly = *r.ReadOnly
		}
		if r.BlockSize != nil {
			l.BlockSize = *r.BlockSize
		}
		return nil
	})
}

func addStoreEdit(name string, r admin.BackstoreRequest) edit {
	return func(c *conf.Config) error {
		b := conf.Backstore{Name: name, Type: r.Type, Options: maps.Clone(r.Options)}
		if b.Options == nil {
			b.Options = map[string]string{}
		}
		for _, was := range c.Backstores {
			if was.Name != name {
				continue
			}
			if was.Type != b.Type || len(differs(was, b)) > 0 {
				return differsError("backstore "+name, fmt.Sprintf("type %s, %s", was.Type, optionText(was.Options)))
			}
			return nil
		}
		c.Backstores = append(c.Backstores, b)
		return nil
	}
}

func optionText(o map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(o)) {
		parts = append(parts, k+"="+o[k])
	}
	return strings.Join(parts, " ")
}

func setStoreEdit(name string, r admin.BackstoreSetRequest) edit {
	return func(c *conf.Config) error {
		for i := range c.Backstores {
			b := &c.Backstores[i]
			if b.Name != name {
				continue
			}
			for k, v := range r.Options {
				if b.Options[k] = v; v == "" {
					delete(b.Options, k)
				}
			}
			return nil
		}
		return knownStore(c, name)
	}
}

func removeStoreEdit(name string) edit {
	return func(c *conf.Config) error {
		if err := knownStore(c, name); err != nil {
			return err
		}
		for _, t := range c.Targets {
			for _, l := range t.LUNs {
				if l.Store == name {
					return &admin.Error{
						Message: fmt.Sprintf("in use by LUN %d of %s", l.Number, t.Name), What: "backstore " + name,
						Todo: fmt.Sprintf("iser lun remove %s/%d first", t.Name, l.Number), Code: admin.CodeInUse,
					}
				}
			}
		}
		c.Backstores = slices.DeleteFunc(c.Backstores, func(b conf.Backstore) bool { return b.Name == name })
		return nil
	}
}

func portalOfRequest(listen netip.AddrPort, r admin.PortalRequest) (conf.Portal, error) {
	p := conf.Portal{Listen: listen, Provider: r.Provider, Group: r.Group}
	if p.Provider == "" {
		p.Provider = conf.ProviderAuto
	}
	if p.Group == 0 {
		p.Group = conf.DefaultGroup
	}
	var err error
	if r.Advertise != "" {
		if p.Advertise, err = conf.ParseAddress(r.Advertise); err != nil {
			return p, err
		}
	}
	if r.External != "" {
		p.External, err = netip.ParseAddr(r.External)
	}
	return p, err
}

func addPortalEdit(address string, r admin.PortalRequest) edit {
	return func(c *conf.Config) error {
		listen, err := conf.ParseAddress(address)
		var p conf.Portal
		if err == nil {
			p, err = portalOfRequest(listen, r)
		}
		if err != nil {
			return badRequest("portal "+address, err.Error(), "")
		}
		for _, q := range c.Portals {
			if q == p {
				return nil
			}
			if q.Listen == listen && listen.Port() != 0 {
				return differsError("portal "+address, fmt.Sprintf("provider %s, portal group %d", q.Provider, q.Group))
			}
		}
		c.Portals = append(c.Portals, p)
		return nil
	}
}

func removePortalEdit(address string) edit {
	return func(c *conf.Config) error {
		listen, err := conf.ParseAddress(address)
		if err != nil {
			return badRequest("portal "+address, err.Error(), "")
		}
		n := len(c.Portals)
		c.Portals = slices.DeleteFunc(c.Portals, func(p conf.Portal) bool { return p.Listen == listen })
		if len(c.Portals) == n {
			return notFound("portal "+address, "iser portal list shows those that there are")
		}
		return nil
	}
}

// anybody is the word for no restriction by name.
const anybody = "any"

// network reads an address or network, and not a name.
func network(who string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(who); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(who)
	return p, err == nil && p == p.Masked()
}

func allowEdit(target, who string) edit {
	return onTarget(target, func(_ *conf.Config, t *conf.Target) error {
		if who == anybody {
			t.Allow, t.AllowFrom, t.Initiators = nil, nil, nil
			return nil
		}
		if p, ok := network(who); ok {
			if !slices.Contains(t.AllowFrom, p) {
				t.AllowFrom = append(t.AllowFrom, p)
			}
			return nil
		}
		n, err := iscsi.ParseName(who)
		if err != nil {
			return badRequest("initiator "+who, err.Error(), "give an iSCSI name, a network as 192.0.2.0/24, or any")
		}
		if !slices.Contains(t.Allow, n) {
			t.Allow = append(t.Allow, n)
		}
		return nil
	})
}

// denyEdit takes who may log in off the list. Taking off the last one would let in everybody, and is refused.
func denyEdit(target, who string) edit {
	return onTarget(target, func(_ *conf.Config, t *conf.Target) error {
		before := len(t.Allow) + len(t.AllowFrom) + len(t.Initiators)
		names := len(t.Allow)+len(t.Initiators) > 0
		p, isNetwork := network(who)
		if isNetwork {
			t.AllowFrom = slices.DeleteFunc(t.AllowFrom, func(q netip.Prefix) bool { return p == q })
		} else {
			n, err := iscsi.ParseName(who)
			if err != nil {
				return badRequest("initiator "+who, err.Error(), "")
			}
			t.Allow = slices.DeleteFunc(t.Allow, func(o iscsi.Name) bool { return o == n })
			t.Initiators = slices.DeleteFunc(t.Initiators, func(i conf.Initiator) bool { return i.Name == n })
		}
		if len(t.Allow)+len(t.AllowFrom)+len(t.Initiators) == before {
			return notFound(who+" among those who may log in to "+string(t.Name), "iser acl list "+string(t.Name)+" shows them")
		}
		if names && len(t.Allow)+len(t.Initiators) == 0 || isNetwork && len(t.AllowFrom) == 0 {
			return &admin.Error{
				Message: "it is the last that may log in; without it anybody may", What: "deny " + who,
				Todo: "iser target disable " + string(t.Name) + " lets nobody in, iser acl allow " + string(t.Name) + " any lets in everybody", Code: admin.CodeRefused,
			}
		}
		return nil
	})
}

// credentials are those of a request.
func credentialsOf(r admin.AuthRequest) (*chap.Credentials, conf.SecretFiles, error) {
	c := &chap.Credentials{User: r.User, MutualUser: r.MutualUser}
	var err error
	read := func(text, file string, to *chap.Secret) {
		switch {
		case err != nil || text == "" && file == "":
		case text != "" && file != "":
			err = fmt.Errorf("both a secret and a file of one")
		case file != "":
			*to, _, err = conf.ReadSecret(file)
		default:
			*to, err = chap.NewSecret(text)
		}
	}
	read(r.Secret, r.SecretFile, &c.Secret)
	read(r.MutualSecret, r.MutualSecretFile, &c.MutualSecret)
	if err == nil {
		err = c.Check()
	}
	return c, conf.SecretFiles{Secret: r.SecretFile, Mutual: r.MutualSecretFile}, err
}

// authEdit says what initiators have to prove; target is "" for discovery, and a nil request clears it.
func authEdit(target, initiator string, r *admin.AuthRequest) edit {
	return func(c *conf.Config) error {
		var cred *chap.Credentials
		if r != nil {
			var files conf.SecretFiles
			var err error
			if cred, files, err = credentialsOf(*r); err != nil {
				return badRequest("auth", err.Error(), "")
			}
			if files != (conf.SecretFiles{}) {
				if c.SecretFiles == nil {
					c.SecretFiles = map[*chap.Credentials]conf.SecretFiles{}
				}
				c.SecretFiles[cred] = files
			}
		}
		if target == "" {
			c.Discovery.Auth = cred
			return nil
		}
		t, err := targetIn(c, target)
		if err != nil {
			return err
		}
		if initiator != "" {
			return initiatorAuth(t, initiator, cred)
		}
		for i := range t.Initiators { // who had the target's has the new one
			if t.Initiators[i].Auth == t.Auth {
				t.Initiators[i].Auth = cred
			}
		}
		t.Auth = cred
		return nil
	}
}

func initiatorAuth(t *conf.Target, initiator string, cred *chap.Credentials) error {
	n, err := iscsi.ParseName(initiator)
	if err != nil {
		return badRequest("initiator "+initiator, err.Error(), "")
	}
	for i := range t.Initiators {
		if t.Initiators[i].Name == n {
			t.Initiators[i].Auth = cred
			return nil
		}
	}
	t.Initiators = append(t.Initiators, conf.Initiator{Name: n, Auth: cred})
	return nil
}
