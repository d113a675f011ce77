package importer

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// STGT reads a targets.conf, or what `tgt-admin --dump` prints.
func STGT(path string, o Options) (*Result, error) {
	im := newImporter()
	return im.stgt(path, o)
}

func (im *importer) stgt(path string, o Options) (*Result, error) {
	root := &stgtBlock{}
	p := stgtParser{open: []*stgtBlock{root}}
	if err := p.file(path, 0); err != nil {
		return nil, err
	}
	im.stgtGlobals(root)
	driver, _ := root.last("default-driver")
	for _, b := range root.blocks {
		if b.kind != "target" {
			im.lostf("%s: <%s %s>", b.where, b.kind, b.name)
			continue
		}
		im.stgtTarget(b, cmp.Or(driver, "iscsi"))
	}
	return im.finish(o)
}

// stgtGlobals reads what holds for all targets.
func (im *importer) stgtGlobals(root *stgtBlock) {
	for _, o := range root.options {
		switch o.key {
		case "default-driver", "ignore-errors", "control-port", "iSNS", "iSNSServerIP", "iSNSServerPort", "incomingdiscoveryuser", "outgoingdiscoveryuser":
		case "iSNSAccessControl":
			if !strings.EqualFold(o.value, "off") {
				im.lostf("%s: iSNSAccessControl: a name server does not decide here who may log in", o.where)
			}
		default:
			im.lostf("%s: %s", o.where, o.key)
		}
	}
	if on, _ := root.last("iSNS"); strings.EqualFold(on, "on") {
		server, where := root.last("iSNSServerIP")
		port, _ := root.last("iSNSServerPort")
		if server == "" {
			im.lostf("%s: iSNS is on without iSNSServerIP", where)
		} else {
			im.Config.ISNS.Server = net.JoinHostPort(server, cmp.Or(port, "3205"))
		}
	}
	in, inAt := root.last("incomingdiscoveryuser")
	out, outAt := root.last("outgoingdiscoveryuser")
	if inAt == "" && outAt == "" {
		return
	}
	d := &im.Config.Discovery
	var err error
	if d.Auth, err = stgtCredentials(in, out); err != nil {
		d.Disabled = true
		im.lostf("%s: discovery: %v: it is disabled until you have mended that (discovery: {enabled: no})", cmp.Or(inAt, outAt), err)
	}
}

// stgtUnknownPassword is what `tgt-admin --dump` writes for the passwords, which tgtd does not tell.
const stgtUnknownPassword = "PLEASE_CORRECT_THE_PASSWORD"

// stgtCredentials reads `USER PASSWORD` for one direction or both.
func stgtCredentials(in, out string) (*chap.Credentials, error) {
	user, secret, _ := strings.Cut(in, " ")
	mutualUser, mutualSecret, _ := strings.Cut(out, " ")
	secret, mutualSecret = strings.TrimSpace(secret), strings.TrimSpace(mutualSecret)
	if secret == stgtUnknownPassword || mutualSecret == stgtUnknownPassword {
		return nil, fmt.Errorf("the password is not in a dump; import targets.conf instead, or write it there")
	}
	return credentials(user, secret, mutualUser, mutualSecret)
}

func (im *importer) stgtTarget(b *stgtBlock, driver string) {
	t := conf.Target{Name: iscsi.Name(b.name), Negotiate: conf.DefaultNegotiate()}
	if d, where := b.last("driver"); where != "" {
		driver = d
	}
	provider := conf.ProviderTCP
	switch driver {
	case "iscsi":
	case "iser":
		provider = conf.ProviderAuto
	default:
		im.lostf("%s: target %s is left out: driver %s", b.where, b.name, driver)
		return
	}
	im.stgtAccess(&t, b)
	for _, o := range b.options {
		switch {
		case slices.Contains(stgtElsewhere, o.key):
		case slices.Contains(stgtUnitOptions, o.key) || o.key == "lun": // of all units, see stgtUnits
		case im.negotiate(&t, o.key, o.value):
		default:
			im.lostf("%s: target %s: %s %s", o.where, b.name, o.key, o.value)
		}
	}
	im.stgtUnits(&t, b)
	// tgtd listens on all addresses, whatever its configuration says.
	im.addTarget(t, []conf.Portal{{Listen: netip.AddrPortFrom(netip.IPv4Unspecified(), conf.DefaultPort), Provider: provider}})
}

// stgtElsewhere are options of a target that are read on their own, or mean nothing outside of tgtd.
var stgtElsewhere = []string{
	"driver", "backing-store", "direct-store", "incominguser", "outgoinguser", "initiator-address", "initiator-name", "controller_tid",
}

// stgtAccess reads who may use a target.
func (im *importer) stgtAccess(t *conf.Target, b *stgtBlock) {
	var users []stgtOption
	restricted := false
	for _, o := range b.options {
		switch o.key {
		case "incominguser":
			users = append(users, o)
		case "initiator-address", "initiator-name":
			restricted = restricted || o.value != "ALL"
			im.stgtAllow(t, o)
		}
	}
	if restricted && len(t.Allow) == 0 && len(t.AllowFrom) == 0 {
		im.close(t, "nobody of those who may use it could be carried over")
	}
	out, outAt := b.last("outgoinguser")
	if len(users) == 0 {
		if outAt != "" {
			im.lostf("%s: target %s: outgoinguser: only initiators that prove who they are are proved something", outAt, t.Name)
		}
		return
	}
	for _, o := range users[1:] {
		user, _, _ := strings.Cut(o.value, " ")
		im.lostf("%s: target %s: user %s: one can be carried over; give others an entry of initiators", o.where, t.Name, user)
	}
	auth, err := stgtCredentials(users[0].value, out)
	if err != nil {
		im.close(t, "%v", err)
		return
	}
	t.Auth = auth
}

// stgtAllow reads one of those who may use a target. tgt-admin --dump calls a network a name.
func (im *importer) stgtAllow(t *conf.Target, o stgtOption) {
	if o.value == "ALL" {
		return
	}
	if a, err := netip.ParseAddr(o.value); err == nil {
		t.AllowFrom = append(t.AllowFrom, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		return
	}
	if p, err := netip.ParsePrefix(o.value); err == nil {
		t.AllowFrom = append(t.AllowFrom, p.Masked())
		return
	}
	name, err := iscsi.ParseName(o.value)
	if err != nil || o.key == "initiator-address" {
		im.lostf("%s: target %s: %s %s is no address or name that can be", o.where, t.Name, o.key, o.value)
		return
	}
	t.Allow = append(t.Allow, name)
}

// stgtUnitOptions are those of a unit, which a target may have for all of its units.
var stgtUnitOptions = []string{
	"write-cache", "scsi_id", "scsi_sn", "vendor_id", "product_id", "product_rev", "sense_format", "removable", "online", "path",
	"mode_page", "readonly", "device-type", "bs-type", "bsopts", "bsoflags", "allow-in-use", "block-size", "lbppbe", "la_lba", "optimal_xfer_gran",
	"optimal_xfer_len", "params",
}

// stgtUnits reads the units: those of backing-store before those of direct-store, as tgt-admin numbers them, from 1 on
// where no number is given.
func (im *importer) stgtUnits(t *conf.Target, b *stgtBlock) {
	var units []*stgtBlock
	for _, kind := range []string{"backing-store", "direct-store"} {
		for _, o := range b.options {
			if o.key == kind {
				units = append(units, &stgtBlock{kind: kind, name: o.value, where: o.where})
			}
		}
		for _, c := range b.blocks {
			if c.kind == kind {
				units = append(units, c)
			}
		}
	}
	for _, c := range b.blocks {
		if c.kind != "backing-store" && c.kind != "direct-store" {
			im.lostf("%s: target %s: <%s %s>", c.where, t.Name, c.kind, c.name)
		}
	}
	taken, numbers := make(map[int]bool), make([]int, len(units))
	for i, u := range units {
		n, where := b.unitOption(u, "lun")
		number, err := strconv.ParseUint(n, 10, 14)
		if where == "" {
			continue
		}
		if err != nil || number == 0 {
			im.lostf("%s: target %s: lun %s: another number is taken", where, t.Name, n)
			continue
		}
		numbers[i] = int(number)
		taken[int(number)] = true
	}
	free := 1 // 0 is stgt's controller
	for i, u := range units {
		for ; numbers[i] == 0 && taken[free]; free++ {
		}
		if numbers[i] == 0 {
			numbers[i], taken[free] = free, true
		}
		im.stgtUnit(t, b, u, numbers[i])
	}
}

// unitOption is an option of a unit, or else of its target b.
func (b *stgtBlock) unitOption(u *stgtBlock, key string) (value, where string) {
	if v, where := u.last(key); where != "" {
		return v, where
	}
	return b.last(key)
}

func (im *importer) stgtUnit(t *conf.Target, b, u *stgtBlock, number int) {
	l := conf.LUN{Number: number, BlockSize: conf.DefaultBlockSize}
	where := fmt.Sprintf("%s: target %s LUN %d", u.where, t.Name, number)
	o := backstore.Options{}
	for _, key := range stgtUnitOptions {
		v, at := b.unitOption(u, key)
		if at == "" {
			continue
		}
		switch known, fits := im.stgtUnitOption(key, v, &l, o); {
		case !fits:
			im.lostf("%s is left out: %s %s has no like here", where, key, v)
			return
		case !known:
			im.lostf("%s: %s %s", where, key, v)
		}
	}
	if u.kind == "direct-store" {
		im.lostf("%s: the identity of the device %s, which direct-store shows", where, u.name)
	}
	for _, o := range u.options {
		if o.key != "lun" && !slices.Contains(stgtUnitOptions, o.key) {
			im.lostf("%s: %s %s", o.where, o.key, o.value)
		}
	}
	if typ, _ := b.unitOption(u, "bs-type"); typ == "null" {
		l.Store = im.store(where, where, "null", "null", backstore.Options{})
	} else {
		l.Store = im.pathStore(where, u.name, o)
	}
	im.addLUN(t, l)
}

// stgtUnitOption carries over an option of a unit. known is false if it cannot be and is to be told, fits if the unit
// makes no sense without.
func (im *importer) stgtUnitOption(key, v string, l *conf.LUN, o backstore.Options) (known, fits bool) {
	on := v == "1" || strings.EqualFold(v, "on") || strings.EqualFold(v, "yes")
	switch key {
	case "write-cache":
		if !on && v != "" {
			o["sync"] = "dsync"
		}
	case "readonly":
		l.ReadOnly = on
	case "block-size":
		n, err := strconv.Atoi(v)
		if err != nil {
			return false, true
		}
		l.BlockSize = n
	case "device-type":
		return true, v == "disk"
	case "bs-type":
		if v == "aio" {
			o["direct"] = "yes" // stgt's aio opens so
		}
		return true, slices.Contains([]string{"rdwr", "aio", "null"}, v)
	case "online":
		return true, on
	case "allow-in-use", "lbppbe", "la_lba", "optimal_xfer_gran", "optimal_xfer_len": // none of them changes what a disk holds
	default:
		return false, true
	}
	return true, true
}
