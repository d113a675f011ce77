package conf

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/token"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/scsi"
)

// hidden is what stands for a secret that is not shown. It is too short to be read as one by mistake.
const hidden = "(hidden)"

// Marshal writes a checked configuration as a file that Parse reads as the same one. Secrets that were read from
// files of their own stand there as the names of the files; others are written out: the file is for its owner's eyes.
func (c *Config) Marshal() []byte { return c.marshal(chap.Secret.Reveal) }

// Show is Marshal without secrets, which makes it something to look at, and nothing to load.
func (c *Config) Show() []byte { return c.marshal(func(chap.Secret) string { return hidden }) }

func (c *Config) marshal(reveal func(chap.Secret) string) []byte {
	w := writer{c: c, reveal: reveal}
	w.line("", "version", strconv.Itoa(c.Version))
	if c.Insecure {
		w.line("", "insecure", "true")
	}
	w.option("", "state_dir", c.StateDir)
	if c.Auth != nil {
		w.line("", "auth", w.auth(c.Auth))
	}
	if d := w.discovery(); d != "" {
		w.line("", "discovery", d)
	}
	if c.ISNS.Server != "" {
		w.line("", "isns", flow(entry("server", c.ISNS.Server), entry("entity", c.ISNS.Entity)))
	}
	w.head("portals")
	for _, p := range c.Portals {
		w.b.WriteString("  - " + portal(p) + "\n")
	}
	if len(c.Backstores) > 0 {
		w.head("backstores")
	}
	for _, b := range c.Backstores {
		w.line("  ", b.Name, backstoreOf(b))
	}
	if len(c.Targets) > 0 {
		w.head("targets")
	}
	for i := range c.Targets {
		w.target(&c.Targets[i])
	}
	w.limits()
	return []byte(w.b.String())
}

// A writer writes a configuration, in the order of docs/iserd.yaml. What has its default is left out.
type writer struct {
	b      strings.Builder
	c      *Config
	reveal func(chap.Secret) string
}

func (w *writer) head(key string) { w.b.WriteString(key + ":\n") }

// line writes a key and a value, which is YAML already.
func (w *writer) line(indent, key, value string) {
	w.b.WriteString(indent + scalar(key) + ": " + value + "\n")
}

// option writes a text that is not empty.
func (w *writer) option(indent, key, value string) {
	if value != "" {
		w.line(indent, key, scalar(value))
	}
}

// scalar writes a text so that it is read as that text.
func scalar(s string) string {
	if number, err := strconv.ParseUint(s, 10, 30); err == nil && strconv.FormatUint(number, 10) == s {
		return s // it is read as its digits
	}
	if s == "" || token.IsNeedQuoted(s) || strings.ContainsRune("-_.:+", rune(s[0])) || strings.HasSuffix(s, ":") ||
		strings.Trim(s, nameChars+"/:+") != "" {
		return strconv.Quote(s)
	}
	return s
}

// An item is a key with its value, as YAML; empty values are left out.
type item struct{ key, value string }

func entry(key, value string) item {
	if value == "" {
		return item{}
	}
	return item{key, scalar(value)}
}

func number[T int | int64 | uint32](key string, v, ordinary T) item {
	if v == ordinary {
		return item{}
	}
	return item{key, strconv.FormatInt(int64(v), 10)}
}

func yes(key string, on bool) item {
	if !on {
		return item{}
	}
	return item{key, "true"}
}

func addrPort(key string, a netip.AddrPort) item {
	if !a.IsValid() {
		return item{}
	}
	return item{key, strconv.Quote(a.String())}
}

// flow writes a mapping in one line.
func flow(items ...item) string {
	var parts []string
	for _, i := range items {
		if i.key != "" {
			parts = append(parts, scalar(i.key)+": "+i.value)
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func sequence[T any](key string, list []T) item {
	if len(list) == 0 {
		return item{}
	}
	return item{key, flowList(list)}
}

func flowList[T any](list []T) string {
	var parts []string
	for _, v := range list {
		parts = append(parts, scalar(fmt.Sprint(v)))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func portal(p Portal) string {
	external := item{}
	if p.External.IsValid() {
		external = item{"external", strconv.Quote(p.External.String())}
	}
	return flow(addrPort("listen", p.Listen), entry("provider", p.Provider), number("group", p.Group, DefaultGroup),
		addrPort("advertise", p.Advertise), external)
}

func backstoreOf(b Backstore) string {
	items := []item{entry("type", b.Type)}
	for _, k := range slices.Sorted(maps.Keys(b.Options)) {
		items = append(items, item{k, scalar(b.Options[k])})
	}
	return flow(items...)
}

// auth writes what initiators have to prove.
func (w *writer) auth(a *chap.Credentials) string {
	if a == nil {
		return "none"
	}
	files := w.c.SecretFiles[a]
	secret := func(file string, s chap.Secret) item {
		if file != "" {
			return item{"secret_file", scalar(file)}
		}
		return item{"secret", strconv.Quote(w.reveal(s))}
	}
	items := []item{entry("user", a.User), secret(files.Secret, a.Secret)}
	if a.Mutual() {
		items = append(items, item{"mutual", flow(entry("user", a.MutualUser), secret(files.Mutual, a.MutualSecret))})
	}
	return flow(append(items, sequence("algorithms", a.Algorithms))...)
}

// inherited reports whether credentials need not be written below others.
func (w *writer) inherited(a, above *chap.Credentials) bool {
	if a == nil || above == nil {
		return a == above
	}
	return a == above || reflect.DeepEqual(a, above) && w.c.SecretFiles[a] == w.c.SecretFiles[above]
}

func (w *writer) discovery() string {
	d := &w.c.Discovery
	var items []item
	if d.Disabled {
		items = append(items, item{"enabled", "false"})
	}
	if !w.inherited(d.Auth, w.c.Auth) {
		items = append(items, item{"auth", w.auth(d.Auth)})
	}
	if items == nil {
		return ""
	}
	return flow(items...)
}

func (w *writer) target(t *Target) {
	const in = "    "
	w.b.WriteString("  " + scalar(string(t.Name)) + ":\n")
	start := w.b.Len()
	if t.Disabled {
		w.line(in, "enabled", "false")
	}
	w.option(in, "alias", t.Alias)
	if len(t.LUNs) > 0 {
		w.b.WriteString(in + "luns:\n")
	}
	for _, l := range t.LUNs {
		w.line(in+"  ", strconv.Itoa(l.Number), lun(l))
	}
	var allow []string
	for _, n := range t.Allow {
		allow = append(allow, string(n))
	}
	for _, p := range t.AllowFrom {
		allow = append(allow, p.String())
	}
	if len(allow) > 0 {
		w.line(in, "allow", flowList(allow))
	}
	if !w.inherited(t.Auth, w.c.Auth) {
		w.line(in, "auth", w.auth(t.Auth))
	}
	w.initiators(in, t)
	w.places(in, t)
	w.negotiate(in, &t.Negotiate)
	if w.b.Len() == start {
		w.b.WriteString(in + "{}\n")
	}
}

func lun(l LUN) string {
	if !l.ReadOnly && l.BlockSize == DefaultBlockSize {
		return scalar(l.Store)
	}
	return flow(entry("store", l.Store), yes("readonly", l.ReadOnly), number("block_size", l.BlockSize, DefaultBlockSize))
}

func (w *writer) initiators(in string, t *Target) {
	if len(t.Initiators) > 0 {
		w.b.WriteString(in + "initiators:\n")
	}
	for _, i := range t.Initiators {
		var items []item
		if !w.inherited(i.Auth, t.Auth) {
			items = append(items, item{"auth", w.auth(i.Auth)})
		}
		if i.LUNs != nil {
			items = append(items, item{"luns", flowList(i.LUNs)})
		}
		w.line(in+"  ", string(i.Name), flow(append(items, yes("readonly", i.ReadOnly))...))
	}
}

// places writes through which portal groups a target is reached, and how.
func (w *writer) places(in string, t *Target) {
	if len(t.Groups) > 0 {
		w.line(in, "groups", flowList(t.Groups))
	}
	if r := t.Redirect; r != nil {
		w.line(in, "redirect", flow(item{"to", strconv.Quote(r.To)}, yes("permanent", r.Permanent), sequence("groups", r.Groups)))
	}
	if len(t.ALUA) > 0 {
		w.line(in, "alua", flow(states(t.ALUA)...))
	}
}

func states(groups []scsi.PortGroup) (items []item) {
	for _, g := range groups {
		items = append(items, item{strconv.Itoa(int(g.ID)), g.State.String()})
	}
	return items
}

func (w *writer) negotiate(in string, n *iscsi.Config) {
	d := DefaultNegotiate()
	if n.InitialR2T != nil {
		w.line(in, "initial_r2t", strconv.FormatBool(*n.InitialR2T))
	}
	if n.ImmediateData != d.ImmediateData {
		w.line(in, "immediate_data", strconv.FormatBool(n.ImmediateData))
	}
	for _, i := range []item{
		number("first_burst", n.FirstBurstLength, min(d.FirstBurstLength, n.MaxBurstLength)),
		number("max_burst", n.MaxBurstLength, d.MaxBurstLength), number("max_connections", n.MaxConnections, d.MaxConnections),
	} {
		if i.key != "" {
			w.line(in, i.key, i.value)
		}
	}
}

func (w *writer) limits() {
	l, d := &w.c.Limits, Default().Limits
	timeout := item{}
	if l.LoginTimeout != d.LoginTimeout {
		timeout = item{"login_timeout", l.LoginTimeout.String()}
	}
	all := flow(
		number("sessions", l.Sessions, d.Sessions), number("sessions_per_initiator", l.SessionsPerInitiator, d.SessionsPerInitiator),
		number("connections_per_address", l.ConnectionsPerAddress, d.ConnectionsPerAddress), number("logins", l.Logins, d.Logins), timeout,
		number("commands_per_session", l.CommandsPerSession, d.CommandsPerSession), number("buffers", l.Buffers, d.Buffers),
		number("max_transfer", l.MaxTransfer, d.MaxTransfer))
	if all != "{}" {
		w.line("", "limits", all)
	}
}
