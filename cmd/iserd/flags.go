package main

import (
	"os"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/packets"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/spf13/cobra"
)

// Names and sizes of what is served without a configuration file.
const (
	defaultRAM = "1GiB"
	namePrefix = "iqn.2026-01.local.iserd:" // the type of the store follows
)

// flags are the root command's.
type flags struct {
	config, ram, file         string
	listen, provider, log     string
	iqn                       string
	initialR2T, immediateData string
	insecure                  bool
	user, secretFile          string
	mutualUser, mutualSecret  string
	trace, stateDir           string
	pcap, pcapLimit           string
	admin, adminGroup         string
	metrics, web              string
}

func (f *flags) register(root *cobra.Command) {
	fs := root.Flags()
	fs.StringVar(&f.config, "config", "", "serve what this `FILE` describes")
	fs.StringVar(&f.ram, "ram", "", "serve a RAM disk of this `SIZE` (default "+defaultRAM+" without --config or --file)")
	fs.StringVar(&f.file, "file", "", "serve a file, `PATH[:SIZE]`; with SIZE it is created or grows")
	fs.StringVar(&f.listen, "listen", "", "`ADDR[:PORT]` to listen on, in place of the file's portals (default 127.0.0.1:3260)")
	fs.StringVar(&f.provider, "provider", "", "`PROVIDER` of iSER beside TCP: auto (verbs where an RDMA device has the address, else roce), verbs, roce, or tcp for none; in place of the file's")
	fs.StringVar(&f.log, "log", "info", "log `LEVEL`: error, warning, info or debug; of one subsystem by LEVEL,SUBSYSTEM=LEVEL: config, isns, rdma or target")
	fs.StringVar(&f.iqn, "iqn", "", "`NAME` of the target (default "+namePrefix+"ram or "+namePrefix+"file)")
	fs.StringVar(&f.initialR2T, "initial-r2t", "", "answer InitialR2T=`yes|no` (default yes over iSER, no over TCP)")
	fs.StringVar(&f.immediateData, "immediate-data", "", "answer ImmediateData=`yes|no` (default yes)")
	fs.BoolVar(&f.insecure, "insecure", false, "listen on addresses that other hosts reach although nobody has to prove who they are")
	fs.StringVar(&f.stateDir, "state-dir", "", "`DIR` that keeps persistent reservations through a crash, in place of the file's (default none: APTPL is refused)")
	fs.StringVar(&f.user, "user", "", "CHAP user `NAME` that initiators have to prove to be, for the target and for discovery")
	fs.StringVar(&f.secretFile, "secret-file", "", "`FILE` with the secret of --user, 12 to 255 bytes in one line")
	fs.StringVar(&f.mutualUser, "mutual-user", "", "CHAP user `NAME` that the target proves to be, to initiators that ask")
	fs.StringVar(&f.mutualSecret, "mutual-secret-file", "", "`FILE` with the secret of --mutual-user")
	fs.StringVar(&f.trace, "trace", "", "write every step of iSER's data path to this `FILE`, a JSON object a line; slow")
	fs.StringVar(&f.pcap, "pcap", "", "write the packets of our own RoCE to this `FILE` as pcapng, for iser trace read and Wireshark (docs/TRACE.md); all data is in it")
	fs.StringVar(&f.pcapLimit, "pcap-limit", packets.DefaultLimit, "stop the file of --pcap at this `SIZE`; 0: never")
	fs.StringVar(&f.admin, "admin", "", "`SOCKET` of the admin API, unix:PATH, or off (default unix:$ISERD_SOCKET, else unix:"+admin.DefaultSocket+", where it can be made)")
	fs.StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics, /healthz and /readyz on `ADDR:PORT`; :PORT is loopback (docs/METRICS.md)")
	fs.StringVar(&f.web, "web", "", "serve a page that shows what goes on, and changes nothing, on `ADDR:PORT`; :PORT is loopback")
	fs.StringVar(&f.adminGroup, "admin-group", adminGroup, "`GROUP` that may use the socket beside our user")
	root.MarkFlagsMutuallyExclusive("config", "ram", "file")
	for _, name := range []string{"iqn", "initial-r2t", "immediate-data", "user", "secret-file", "mutual-user", "mutual-secret-file"} {
		root.MarkFlagsMutuallyExclusive("config", name)
	}
	root.MarkFlagsRequiredTogether("user", "secret-file")
	root.MarkFlagsRequiredTogether("mutual-user", "mutual-secret-file")
}

// adminPath is where the admin socket shall be, "" for none, and whether somebody has said so.
func (f *flags) adminPath() (path string, asked bool) {
	switch {
	case f.admin == "off":
		return "", true
	case f.admin != "":
		return strings.TrimPrefix(f.admin, "unix:"), true
	}
	return admin.Socket(), os.Getenv(admin.SocketVariable) != ""
}

// configuration is what the flags, and the file they name, ask for.
func (f *flags) configuration() (*conf.Config, error) {
	var c *conf.Config
	var err error
	if f.config != "" {
		c, err = conf.Load(f.config)
	} else {
		c, err = f.quick()
	}
	if err != nil {
		return nil, err
	}
	if f.listen != "" {
		listen, err := conf.ParseAddress(f.listen)
		if err != nil {
			return nil, usagef("--listen: %w", err)
		}
		c.Portals = []conf.Portal{{Listen: listen, Provider: conf.ProviderAuto, Group: conf.DefaultGroup}}
	}
	if f.provider != "" {
		for i := range c.Portals {
			c.Portals[i].Provider = f.provider
		}
	}
	if f.stateDir != "" {
		c.StateDir = f.stateDir
	}
	c.Insecure = c.Insecure || f.insecure
	if err := c.Check(); err != nil {
		return nil, usagef("%w", err) // what a file says has been checked: this is the flags' fault
	}
	return c, nil
}

// quick is one target with one disk.
func (f *flags) quick() (*conf.Config, error) {
	store := conf.Backstore{Name: "ram", Type: "ram", Options: backstore.Options{"size": defaultRAM}}
	switch {
	case f.ram != "":
		store.Options["size"] = f.ram
	case f.file != "":
		store = conf.Backstore{Name: "file", Type: "file", Options: fileOptions(f.file)}
	}
	t := conf.Target{
		Name:      iscsi.Name(namePrefix + store.Type),
		LUNs:      []conf.LUN{{Number: 0, Store: store.Name, BlockSize: conf.DefaultBlockSize}},
		Negotiate: conf.DefaultNegotiate(),
	}
	if f.iqn != "" {
		name, err := iscsi.ParseName(f.iqn)
		if err != nil {
			return nil, usagef("--iqn: %w", err)
		}
		t.Name = name
	}
	if err := f.negotiate(&t.Negotiate); err != nil {
		return nil, err
	}
	c := conf.Default()
	auth, err := f.auth(c)
	if err != nil {
		return nil, err
	}
	c.Discovery.Auth, t.Auth = auth, auth
	c.Backstores, c.Targets = []conf.Backstore{store}, []conf.Target{t}
	return c, nil
}

// auth is what initiators have to prove.
func (f *flags) auth(c *conf.Config) (*chap.Credentials, error) {
	if f.user == "" {
		if f.mutualUser != "" {
			return nil, usagef("--mutual-user: only initiators that prove who they are are proved something; give --user too")
		}
		return nil, nil
	}
	auth := &chap.Credentials{User: f.user, MutualUser: f.mutualUser}
	read := func(flag, path string, to *chap.Secret) error {
		s, warning, err := conf.ReadSecret(path)
		if err != nil {
			return usagef("%s: %w", flag, err)
		}
		if warning != "" {
			c.Warnings = append(c.Warnings, warning)
		}
		*to = s
		return nil
	}
	if err := read("--secret-file", f.secretFile, &auth.Secret); err != nil {
		return nil, err
	}
	if f.mutualUser == "" {
		return auth, nil
	}
	return auth, read("--mutual-secret-file", f.mutualSecret, &auth.MutualSecret)
}

func (f *flags) negotiate(n *iscsi.Config) error {
	if f.initialR2T != "" {
		v, err := yesNo("--initial-r2t", f.initialR2T)
		if err != nil {
			return err
		}
		n.InitialR2T = &v
	}
	if f.immediateData != "" {
		v, err := yesNo("--immediate-data", f.immediateData)
		if err != nil {
			return err
		}
		n.ImmediateData = v
	}
	return nil
}

func yesNo(flag, s string) (bool, error) {
	on, err := backstore.ParseSwitch(s)
	if err != nil {
		return false, usagef("%s %w", flag, err)
	}
	return on, nil
}

// fileOptions reads PATH[:SIZE]. What follows the last colon is a size only if it can be read as one.
func fileOptions(s string) backstore.Options {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		if _, err := backstore.ParseSize(s[i+1:]); err == nil {
			return backstore.Options{"path": s[:i], "size": s[i+1:]}
		}
	}
	return backstore.Options{"path": s}
}
