package importer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// The parts of a saveconfig.json that we read (rtslib's dump). Of each other part what matters is that it is not what
// LIO has by default.
type (
	lioConfig struct {
		Fabrics []lioFabric `json:"fabric_modules"`
		Objects []lioObject `json:"storage_objects"`
		Targets []lioTarget `json:"targets"`
	}
	lioFabric struct {
		Name string `json:"name"`
		// Of discovery.
		Enabled        bool   `json:"discovery_enable_auth"`
		User           string `json:"discovery_userid"`
		Password       string `json:"discovery_password"`
		MutualUser     string `json:"discovery_mutual_userid"`
		MutualPassword string `json:"discovery_mutual_password"`
	}
	lioObject struct {
		Name       string         `json:"name"`
		Plugin     string         `json:"plugin"`
		Dev        string         `json:"dev"`
		Size       int64          `json:"size"`
		WriteBack  *bool          `json:"write_back"`
		ReadOnly   bool           `json:"readonly"`
		WWN        string         `json:"wwn"`
		Attributes map[string]any `json:"attributes"`
		Groups     []lioALUA      `json:"alua_tpgs"`
	}
	lioALUA struct {
		Name string `json:"name"`
	}
	lioTarget struct {
		Fabric string   `json:"fabric"`
		WWN    string   `json:"wwn"`
		TPGs   []lioTPG `json:"tpgs"`
	}
	lioTPG struct {
		Tag        int            `json:"tag"`
		Enable     bool           `json:"enable"`
		Attributes map[string]any `json:"attributes"`
		Parameters map[string]any `json:"parameters"`
		LUNs       []lioLUN       `json:"luns"`
		ACLs       []lioACL       `json:"node_acls"`
		Portals    []lioPortal    `json:"portals"`
		lioCHAP
	}
	lioLUN struct {
		Index  int    `json:"index"`
		Object string `json:"storage_object"`
	}
	lioACL struct {
		WWN    string      `json:"node_wwn"`
		Mapped []lioMapped `json:"mapped_luns"`
		lioCHAP
	}
	lioCHAP struct {
		User           string `json:"chap_userid"`
		Password       string `json:"chap_password"`
		MutualUser     string `json:"chap_mutual_userid"`
		MutualPassword string `json:"chap_mutual_password"`
	}
	lioMapped struct {
		Index        int  `json:"index"`
		LUN          int  `json:"tpg_lun"`
		WriteProtect bool `json:"write_protect"`
	}
	lioPortal struct {
		Address string `json:"ip_address"`
		Port    int    `json:"port"`
		ISER    bool   `json:"iser"`
		Offload bool   `json:"offload"`
	}
)

// LIO reads a saveconfig.json of targetcli.
func LIO(path string, o Options) (*Result, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	im := newImporter()
	return im.lio(path, b, o)
}

func (im *importer) lio(path string, b []byte, o Options) (*Result, error) {
	var c lioConfig
	if err := decode(path, b, &c); err != nil {
		return nil, err
	}
	im.lioDiscovery(c.Fabrics)
	objects := make(map[string]lioObject)
	for _, so := range c.Objects {
		objects["/backstores/"+so.Plugin+"/"+so.Name] = so
		if so.WWN != "" {
			im.lostf("storage object %s: its serial number (%s): initiators find a disk of another identity", so.Name, so.WWN)
		}
		for _, g := range so.Groups {
			if g.Name != "default_tg_pt_gp" {
				im.lostf("storage object %s: the port group %s: set alua yourself", so.Name, g.Name)
			}
		}
	}
	for _, t := range c.Targets {
		if t.Fabric != "iscsi" {
			im.lostf("target %s is left out: its fabric is %s", t.WWN, t.Fabric)
			continue
		}
		im.lioTarget(t, objects)
	}
	return im.finish(o)
}

func (im *importer) lioDiscovery(fabrics []lioFabric) {
	d := &im.Config.Discovery
	for _, f := range fabrics {
		if f.Name != "iscsi" || !f.Enabled {
			continue
		}
		c, err := credentials(f.User, f.Password, f.MutualUser, f.MutualPassword)
		if err != nil {
			d.Disabled = true
			im.lostf("discovery: %v: it is disabled until you have mended that (discovery: {enabled: no})", err)
			continue
		}
		d.Auth = c
	}
}

func (im *importer) lioTarget(l lioTarget, objects map[string]lioObject) {
	i := slices.IndexFunc(l.TPGs, func(g lioTPG) bool { return g.Enable })
	if i < 0 && len(l.TPGs) > 0 {
		i = 0
	}
	if i < 0 {
		im.lostf("target %s is left out: it has no portal group", l.WWN)
		return
	}
	for k, g := range l.TPGs {
		if k != i {
			im.lostf("target %s: portal group %d is left out: one can be carried over, %d is", l.WWN, g.Tag, l.TPGs[i].Tag)
		}
	}
	g := &l.TPGs[i]
	t := conf.Target{Name: iscsi.Name(l.WWN), Negotiate: conf.DefaultNegotiate()}
	if !g.Enable {
		im.close(&t, "portal group %d is not enabled", g.Tag)
	}
	im.lioParameters(&t, g.Parameters)
	for _, u := range g.LUNs {
		im.lioLUN(&t, u, objects)
	}
	im.lioAccess(&t, g)
	im.addTarget(t, im.lioPortals(&t, g.Portals))
}

func (im *importer) lioPortals(t *conf.Target, list []lioPortal) []conf.Portal {
	var portals []conf.Portal
	for _, p := range list {
		a, err := netip.ParseAddr(strings.Trim(p.Address, "[]"))
		if err != nil || p.Port < 1 || p.Port > 65535 {
			im.lostf("target %s: the portal %s port %d", t.Name, p.Address, p.Port)
			continue
		}
		provider := conf.ProviderTCP
		if p.ISER {
			provider = conf.ProviderAuto
		}
		if p.Offload {
			im.lostf("target %s: portal %s: offload to a network card", t.Name, p.Address)
		}
		portals = append(portals, conf.Portal{Listen: netip.AddrPortFrom(a, uint16(p.Port)), Provider: provider})
	}
	if len(portals) == 0 {
		im.close(t, "no portal of it could be carried over")
	}
	return portals
}

func (im *importer) lioLUN(t *conf.Target, u lioLUN, objects map[string]lioObject) {
	so, ok := objects[u.Object]
	if !ok {
		im.lostf("target %s: LUN %d is left out: there is no %s", t.Name, u.Index, u.Object)
		return
	}
	l := conf.LUN{Number: u.Index, BlockSize: cmp.Or(lioNumber(so.Attributes["block_size"]), conf.DefaultBlockSize), ReadOnly: so.ReadOnly}
	where := "storage object " + so.Name
	switch so.Plugin {
	case "fileio":
		o := backstore.Options{"sync": "dsync"} // write-through, as LIO says of it by default
		if so.WriteBack != nil && *so.WriteBack {
			delete(o, "sync")
		}
		if so.Size > 0 {
			o["size"] = strconv.FormatInt(so.Size, 10)
		}
		l.Store = im.pathStore(where, so.Dev, o)
	case "block":
		l.Store = im.pathStore(where, so.Dev, backstore.Options{})
	case "ramdisk":
		l.Store = im.store(where, u.Object, so.Name, "ram", backstore.Options{"size": strconv.FormatInt(so.Size, 10)})
	default:
		im.lostf("target %s: LUN %d is left out: %s: stores of type %q have no like here", t.Name, u.Index, where, so.Plugin)
		return
	}
	im.addLUN(t, l)
}

// lioAccess reads who may use a target: the initiators of the list, and in demo mode all others too.
func (im *importer) lioAccess(t *conf.Target, g *lioTPG) {
	proof := lioNumber(g.Attributes["authentication"]) == 1
	demo := lioNumber(g.Attributes["generate_node_acls"]) == 1
	for _, a := range g.ACLs {
		in := conf.Initiator{Name: iscsi.Name(a.WWN)}
		if _, err := iscsi.ParseName(a.WWN); err != nil {
			im.lostf("target %s: initiator %q is left out: %v", t.Name, a.WWN, err)
			continue
		}
		if proof && !im.lioAuth(t, a.WWN, a.lioCHAP, &in.Auth) {
			continue
		}
		if im.lioMapped(t, &in, a.Mapped) {
			t.Initiators = append(t.Initiators, in)
		}
	}
	switch {
	case !demo && len(t.Initiators) == 0:
		im.close(t, "no initiator may use it")
	case demo:
		im.lioDemo(t, g, proof)
	}
}

// lioAuth tells whether an initiator's proof could be carried over; if not, the initiator is left out.
func (im *importer) lioAuth(t *conf.Target, who string, c lioCHAP, to **chap.Credentials) bool {
	auth, err := credentials(c.User, c.Password, c.MutualUser, c.MutualPassword)
	if err != nil {
		im.lostf("target %s: initiator %s is left out: %v", t.Name, who, err)
		return false
	}
	*to = auth
	return true
}

// lioDemo is for initiators that are not in the list: LIO lets all of them in.
func (im *importer) lioDemo(t *conf.Target, g *lioTPG, proof bool) {
	protect := true // LIO's default
	if v, ok := g.Attributes["demo_mode_write_protect"]; ok {
		protect = lioNumber(v) == 1
	}
	if len(t.Initiators) > 0 {
		im.lostf("target %s: in demo mode others than its initiators could use it: they cannot", t.Name)
		return
	}
	if protect {
		for i := range t.LUNs {
			t.LUNs[i].ReadOnly = true
		}
	}
	if !proof {
		return
	}
	if auth, err := credentials(g.User, g.Password, g.MutualUser, g.MutualPassword); err != nil {
		im.close(t, "what initiators prove: %v", err)
	} else {
		t.Auth = auth
	}
}

// lioMapped reads what an initiator sees. LIO can renumber units, and protect single ones; we cannot.
func (im *importer) lioMapped(t *conf.Target, in *conf.Initiator, mapped []lioMapped) bool {
	in.LUNs = []int{}
	protected := 0
	for _, m := range mapped {
		if m.Index != m.LUN {
			im.lostf("target %s: initiator %s sees LUN %d as %d: it does not see it", t.Name, in.Name, m.LUN, m.Index)
			continue
		}
		if !slices.ContainsFunc(t.LUNs, func(l conf.LUN) bool { return l.Number == m.LUN }) {
			continue // that it is left out has been told
		}
		in.LUNs = append(in.LUNs, m.LUN)
		if m.WriteProtect {
			protected++
		}
	}
	if in.ReadOnly = protected > 0; in.ReadOnly && protected < len(in.LUNs) {
		im.lostf("target %s: initiator %s may write some of its units and not others: it may write none", t.Name, in.Name)
	}
	if len(in.LUNs) == 0 {
		im.lostf("target %s: initiator %s is left out: it sees no unit", t.Name, in.Name)
		return false
	}
	if len(in.LUNs) == len(t.LUNs) {
		in.LUNs = nil
	}
	return true
}

// lioDefaults are parameters of which only another value is worth telling.
var lioDefaults = map[string]string{
	"DataDigest": "CRC32C,None", "HeaderDigest": "CRC32C,None", "ErrorRecoveryLevel": "0", "DataPDUInOrder": "Yes",
	"DataSequenceInOrder": "Yes", "DefaultTime2Retain": "20", "DefaultTime2Wait": "2", "IFMarkInt": "Reject", "IFMarker": "No",
	"OFMarkInt": "Reject", "OFMarker": "No", "MaxOutstandingR2T": "1", "MaxRecvDataSegmentLength": "8192",
	"MaxXmitDataSegmentLength": "262144", "AuthMethod": "CHAP,None", "TargetAlias": "LIO Target",
}

func (im *importer) lioParameters(t *conf.Target, params map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		v := fmt.Sprint(params[name])
		if !im.negotiate(t, name, v) && v != lioDefaults[name] && v != "CHAP" {
			im.lostf("target %s: %s=%s", t.Name, name, v)
		}
	}
}

// lioNumber reads a number or switch, which LIO writes as numbers, text or booleans.
func lioNumber(v any) int {
	switch v := v.(type) {
	case float64:
		return int(v)
	case bool:
		if v {
			return 1
		}
	case string:
		n, _ := strconv.Atoi(v) // else 0, which is what LIO has where there is none
		return n
	}
	return 0
}
