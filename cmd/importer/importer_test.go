package importer

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// place writes a file of testdata, or a text, into a directory with a disk.img, and returns its path.
func place(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 4096), 0o600))
	if text == "" {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		text = string(b)
	}
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600))
	return path
}

// same compares the configuration and what was lost with what is wanted, both without the directory's name.
func same(t *testing.T, path string, r *Result, want, lost string) {
	t.Helper()
	dir := filepath.Dir(path)
	c, err := conf.Parse("want", []byte(strings.ReplaceAll(want, "DIR", dir)))
	require.NoError(t, err)
	assert.Equal(t, string(c.Marshal()), string(r.Config.Marshal()))
	assert.Equal(t, lost, strings.ReplaceAll(strings.Join(r.Lost, "\n"), dir, "DIR"))
	loads(t, r.Config)
}

// loads holds that iserd takes what was made.
func loads(t *testing.T, c *conf.Config) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iserd.yaml")
	require.NoError(t, os.WriteFile(path, c.Marshal(), 0o600))
	again, err := conf.Load(path)
	require.NoError(t, err)
	assert.Equal(t, string(c.Marshal()), string(again.Marshal()))
}

func TestGotgt(t *testing.T) {
	path := place(t, "gotgt.json", "")
	r, err := Gotgt(path, Options{})
	require.NoError(t, err)
	same(t, path, r, `version: 1
portals:
  - {listen: "127.0.0.1:3260", provider: tcp}
  - {listen: "127.0.0.2:3261", provider: tcp, group: 2}
backstores:
  disk.img: {type: file, path: DIR/disk.img}
  "null": {type: "null"}
  pool-image: {type: gotgt, plugin: ceph-rbd, path: pool/image}
targets:
  iqn.2016-09.com.gotgt.gostor:02:example-tgt-0:
    luns:
      "0": {store: disk.img, block_size: 4096}
      "1": "null"
      "5": pool-image
    groups: [1]
  iqn.2016-09.com.gotgt.gostor:02:example-tgt-1:
    luns:
      "0": {store: disk.img, block_size: 4096}
    groups: [1, 2]
`, `DIR/gotgt.json: unknown field "more"
portal 2 is left out: "nowhere:1" is no address; want ADDRESS:PORT with a numeric address, as 127.0.0.1:3260, 0.0.0.0:3260 or [::1]:3260
target iqn.2016-09.com.gotgt.gostor:02:example-tgt-0: LUN 2 is left out: storage 1002: stores of type "tape" have no like here
target iqn.2016-09.com.gotgt.gostor:02:example-tgt-0: LUN 3 is left out: storage 1003 is not online
target iqn.2016-09.com.gotgt.gostor:02:example-tgt-0: LUN 4 is left out: there is no storage 9
storage 1004: gotgt's plug-in ceph-rbd has to be in iserd: build it with -tags ceph
target iqn.2016-09.com.gotgt.gostor:02:example-tgt-1: there is no portal 2`)
}

// The example that gotgt comes with has a comma too many, so that gotgt itself refuses it.
func TestGotgtsOwnExample(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/gostor/gotgt").Output()
	require.NoError(t, err)
	example := filepath.Join(strings.TrimSpace(string(out)), "examples", "config.json")
	_, err = Gotgt(example, Options{})
	assert.ErrorContains(t, err, "config.json:9: not JSON: invalid character '}'")

	b, err := os.ReadFile(example)
	require.NoError(t, err)
	mended := strings.Replace(string(b), `"blockShift": 9,`, `"blockShift": 9`, 1)
	r, err := Gotgt(place(t, "config.json", mended), Options{})
	require.NoError(t, err)
	require.Len(t, r.Config.Targets, 1)
	assert.Equal(t, conf.LUN{Number: 0, Store: "disk.img", BlockSize: 512}, r.Config.Targets[0].LUNs[0])
}

func TestSTGT(t *testing.T) {
	path := place(t, "targets.conf", `
default-driver iser   # for all
include more/*.conf
incomingdiscoveryuser finder secret-of-finders
iSNS On
iSNSServerIP 192.0.2.9
ignore-errors yes
unknown thing

<target iqn.2026-01.example:single>
    backing-store DIR/disk.img # LUN 1
    direct-store /dev/missing/a
    backing-store = "DIR/no.img"
    write-cache off
    vendor_id My \
        Company
    InitialR2T Yes
    MaxBurstLength 262144
    DataDigest CRC32C
    initiator-address 192.0.2.7
    initiator-name iqn.2026-01.example:host-a
    incominguser user1 secretpass12
    incominguser user2 secretpass23
    outgoinguser disk secret-of-disk
</target>
<target iqn.2026-01.example:blocks>
    <backing-store DIR/disk.img>
        lun 4
        readonly 1
        block-size 4096
        write-cache off
    </backing-store>
    <direct-store /dev/missing/tape>
        device-type tape
    </direct-store>
    <backing-store /dev/null>
        bs-type null
        colour red
    </backing-store>
    incominguser someuser short
</target>
/* a comment
<target iqn.2026-01.example:not>
*/
`)
	more := filepath.Join(filepath.Dir(path), "more")
	require.NoError(t, os.Mkdir(more, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(more, "a.conf"), []byte(`
<target iqn.2026-01.example:included>
    backing-store `+filepath.Dir(path)+`/disk.img
    write-cache off
    initiator-address not-an-address
</target>
<target iqn.2026-01.example:other>
    driver ibmvio
</target>
`), 0o600))
	r, err := STGT(path, Options{})
	require.NoError(t, err)
	same(t, path, r, `version: 1
discovery: {auth: {user: finder, secret: "secret-of-finders"}}
isns: {server: "192.0.2.9:3205"}
portals:
  - {listen: "127.0.0.1:3260"}
backstores:
  disk.img: {type: file, path: DIR/disk.img, sync: dsync}
  no.img: {type: file, path: DIR/no.img, sync: dsync}
  a: {type: block, path: /dev/missing/a, sync: dsync}
  "null": {type: "null"}
targets:
  iqn.2026-01.example:included:
    enabled: false
    luns:
      "1": disk.img
  iqn.2026-01.example:single:
    luns:
      "1": disk.img
      "2": no.img
      "3": a
    allow: [iqn.2026-01.example:host-a, 192.0.2.7/32]
    auth: {user: user1, secret: "secretpass12", mutual: {user: disk, secret: "secret-of-disk"}}
    initial_r2t: true
    max_burst: 262144
  iqn.2026-01.example:blocks:
    enabled: false
    luns:
      "4": {store: disk.img, readonly: true, block_size: 4096}
      "1": "null"
`, `DIR/targets.conf:8: unknown
DIR/more/a.conf:5: target iqn.2026-01.example:included: initiator-address not-an-address is no address or name that can be
target iqn.2026-01.example:included: nobody of those who may use it could be carried over: it is disabled until you have mended that (enabled: no)
DIR/more/a.conf:7: target iqn.2026-01.example:other is left out: driver ibmvio
DIR/targets.conf:23: target iqn.2026-01.example:single: user user2: one can be carried over; give others an entry of initiators
DIR/targets.conf:19: target iqn.2026-01.example:single: DataDigest CRC32C
DIR/targets.conf:11: target iqn.2026-01.example:single LUN 1: vendor_id My Company
DIR/targets.conf:13: target iqn.2026-01.example:single LUN 2: vendor_id My Company
DIR/targets.conf:13: target iqn.2026-01.example:single LUN 2: DIR/no.img cannot be looked at here (no such file or directory): taken as a file; iserd wants it to be there, or a size
DIR/targets.conf:12: target iqn.2026-01.example:single LUN 3: vendor_id My Company
DIR/targets.conf:12: target iqn.2026-01.example:single LUN 3: the identity of the device /dev/missing/a, which direct-store shows
DIR/targets.conf:12: target iqn.2026-01.example:single LUN 3: /dev/missing/a cannot be looked at here (no such file or directory): taken as a block device
target iqn.2026-01.example:blocks: user "someuser": secret of 5 bytes; at least 12 (96 bits) are needed, taken at random: it is disabled until you have mended that (enabled: no)
DIR/targets.conf:38: colour red
DIR/targets.conf:33: target iqn.2026-01.example:blocks LUN 2 is left out: device-type tape has no like here
portal 0.0.0.0:3260: not everything there wants a proof of who one is (auth of targets and of discovery): it listens on this host only; give auth, or import with --insecure if the network is trusted`)
}

// stgt-dump.conf is what tgt-admin --dump of stgt 1.0.85 printed of a tgtd with two targets, whose first unit was LUN 3, with
// passwords, and with a network: a dump does not tell the first, hides the second and calls the third a name.
func TestSTGTDump(t *testing.T) {
	r, err := STGT("testdata/stgt-dump.conf", Options{Insecure: true})
	require.NoError(t, err)
	loads(t, r.Config)
	require.Len(t, r.Config.Targets, 2)
	one, two := r.Config.Targets[0], r.Config.Targets[1]
	assert.True(t, one.Disabled, "its passwords are not known")
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, one.AllowFrom)
	assert.Equal(t, "iqn.2026-01.example:host-a", string(one.Allow[0]))
	assert.False(t, two.Disabled)
	assert.Len(t, two.AllowFrom, 2)
	assert.Contains(t, strings.Join(r.Lost, "\n"), "the password is not in a dump")
	assert.Equal(t, "0.0.0.0:3260", r.Config.Portals[0].Listen.String())
}

// The examples of stgt's own package are read where it is installed.
func TestSTGTsOwnExample(t *testing.T) {
	const path = "/usr/share/doc/tgt/examples/targets.conf.example"
	if _, err := os.Stat(path); err != nil {
		t.Skip("stgt is not installed: ", err)
	}
	r, err := STGT(path, Options{})
	require.NoError(t, err)
	loads(t, r.Config)
	assert.Len(t, r.Config.Targets, 9)
	assert.Len(t, r.Config.Targets[3].LUNs, 7, "two blocks of one name are one target")
}

func TestSTGTRefusesWhatItCannotRead(t *testing.T) {
	for text, want := range map[string]string{
		"<target iqn.2026-01.example:a>\n":           "targets.conf:1: <target iqn.2026-01.example:a> has no end",
		"</target>":                                  "targets.conf:1: </target> does not end a block",
		"<target iqn.2026-01.example:a>\n</other>":   "targets.conf:2: </other> does not end a block",
		"<target>\n</target>":                        "targets.conf:1: <target> names nothing",
		"<target a\n":                                "is no tag",
		"include missing.conf":                       "missing.conf: no such file",
		"include targets.conf":                       "includes go deeper than",
		"include [":                                  "syntax error in pattern",
		"<target a>\nbacking-store /\x80\n</target>": "not UTF-8",
		"": "no target could be carried over",
		"<target iqn.2026-01.example:a>\n</target>\n#": "has no logical units that could be carried over",
	} {
		if text == "" {
			text = "# nothing\n"
		}
		_, err := STGT(place(t, "targets.conf", text), Options{})
		assert.ErrorContains(t, err, want, text)
	}
	_, err := STGT("testdata/missing", Options{})
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// lio.json is made by hand after saveconfig.json(5) and the names of rtslib: not by LIO.
func TestLIO(t *testing.T) {
	path := place(t, "lio.json", "")
	r, err := LIO(path, Options{Insecure: true})
	require.NoError(t, err)
	same(t, path, r, `version: 1
insecure: true
discovery: {auth: {user: finder, secret: "secret of finders"}}
portals:
  - {listen: "0.0.0.0:3260", provider: tcp}
  - {listen: "[::1]:3260", group: 2}
backstores:
  disk.img: {type: file, path: DIR/disk.img, size: "1048576"}
  lv0: {type: block, path: /dev/vg0/lv0}
  mem: {type: ram, size: "8388608"}
targets:
  iqn.2003-01.org.linux-iscsi.host:named:
    luns:
      "0": {store: disk.img, block_size: 4096}
      "1": {store: lv0, readonly: true}
    initiators:
      iqn.2026-01.example:host-a:
        auth: {user: host-a, secret: "secret of host a", mutual: {user: disk, secret: "secret of disk"}}
      iqn.2026-01.example:host-b:
        auth: {user: host-b, secret: "secret of host b"}
        luns: [0]
        readonly: true
    groups: [1, 2]
    initial_r2t: true
    max_burst: 262144
  iqn.2003-01.org.linux-iscsi.host:demo:
    luns:
      "0": {store: mem, readonly: true}
    groups: [1]
  iqn.2003-01.org.linux-iscsi.host:nobody:
    enabled: false
    luns:
      "0": mem
    groups: [1]
`, `storage object disk: its serial number (5b4b1e4e-9a5b-4b0a-8f0e-0123456789ab): initiators find a disk of another identity
storage object lv: the port group west: set alua yourself
target naa.5001405f1f2f3f4f is left out: its fabric is loopback
target iqn.2003-01.org.linux-iscsi.host:named: portal group 2 is left out: one can be carried over, 1 is
target iqn.2003-01.org.linux-iscsi.host:named: HeaderDigest=CRC32C
storage object lv: /dev/vg0/lv0 cannot be looked at here (no such file or directory): taken as a block device
target iqn.2003-01.org.linux-iscsi.host:named: LUN 2 is left out: storage object raw: stores of type "pscsi" have no like here
target iqn.2003-01.org.linux-iscsi.host:named: initiator iqn.2026-01.example:host-b sees LUN 1 as 7: it does not see it
target iqn.2003-01.org.linux-iscsi.host:named: initiator iqn.2026-01.example:host-c is left out: user "host-c": secret of 5 bytes; at least 12 (96 bits) are needed, taken at random
target iqn.2003-01.org.linux-iscsi.host:nobody: no initiator may use it: it is disabled until you have mended that (enabled: no)`)
}

func TestListenStandsForTheFilesPortals(t *testing.T) {
	a := netip.MustParseAddrPort("127.0.0.9:3262")
	r, err := LIO(place(t, "lio.json", ""), Options{Listen: []netip.AddrPort{a}})
	require.NoError(t, err)
	loads(t, r.Config)
	require.Len(t, r.Config.Portals, 1)
	assert.Equal(t, a, r.Config.Portals[0].Listen)
	for _, target := range r.Config.Targets {
		assert.Empty(t, target.Groups)
	}
}

func TestJSONThatIsNone(t *testing.T) {
	for text, want := range map[string]string{
		"{\n\"targets\": [}":                   "lio.json:2: not JSON",
		`{"targets": 5}`:                       "cannot unmarshal number",
		`{}`:                                   "no target could be carried over",
		`{"targets": [{"fabric": "iscsi"}]}`:   "it has no portal group",
		`{"targets": [{"fabric":"iscsi",` + ``: "lio.json:1: not JSON: unexpected end",
	} {
		_, err := LIO(place(t, "lio.json", text), Options{})
		assert.ErrorContains(t, err, want)
	}
}

// Whatever is imported, iserd reads what comes of it, and nobody but this host gets at what wants no proof.
func checkImport(t *testing.T, r *Result, err error) {
	t.Helper()
	if err != nil {
		return
	}
	require.NoError(t, r.Config.Check())
	loads(t, r.Config)
	assert.False(t, r.Config.Insecure)
}

func FuzzSTGT(f *testing.F) {
	b, err := os.ReadFile("testdata/stgt-dump.conf")
	require.NoError(f, err)
	f.Add(string(b))
	f.Add("<target iqn.2026-01.example:a>\n<backing-store /dev/x>\nlun 3\nblock-size 4096\n</backing-store>\nincominguser a secretpass12\n</target>")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(strings.ToLower(text), "include") {
			return // of the machine's own files
		}
		path := filepath.Join(dir, "targets.conf")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		r, err := STGT(path, Options{})
		checkImport(t, r, err)
	})
}

func FuzzJSON(f *testing.F) {
	for _, name := range []string{"lio.json", "gotgt.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(string(b))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "x.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		r, err := LIO(path, Options{})
		checkImport(t, r, err)
		r, err = Gotgt(path, Options{})
		checkImport(t, r, err)
	})
}
