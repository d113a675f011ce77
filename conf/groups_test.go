package conf_test

import (
	"strings"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGroupsAndRedirect(t *testing.T) {
	c, err := conf.Parse("x.yaml", []byte(`
version: 1
portals:
- {listen: "127.0.0.1:3260"}
- {listen: "127.0.0.2:3260", group: 2}
backstores: {r: {type: ram, size: 1MiB}}
targets:
  iqn.2026-01.example:a: {luns: {0: r}, groups: [2], max_connections: 1}
  iqn.2026-01.example:b: {luns: {0: r}, redirect: {to: "[2001:db8::5]:3260", groups: [1]}}
  iqn.2026-01.example:c: {redirect: {to: "disks.example:3260", permanent: yes}}
`))
	require.NoError(t, err)
	assert.Equal(t, 1, c.Portals[0].Group)
	assert.Equal(t, 2, c.Portals[1].Group)
	assert.Equal(t, []int{2}, c.Targets[0].Groups)
	assert.EqualValues(t, 1, c.Targets[0].Negotiate.MaxConnections)
	assert.EqualValues(t, 4, c.Targets[1].Negotiate.MaxConnections)
	assert.Equal(t, &conf.Redirect{To: "[2001:db8::5]:3260", Groups: []int{1}}, c.Targets[1].Redirect)
	assert.Equal(t, &conf.Redirect{To: "disks.example:3260", Permanent: true}, c.Targets[2].Redirect)
}

func TestMistakesInGroupsAndRedirect(t *testing.T) {
	head := "version: 1\nbackstores: {r: {type: ram, size: 1MiB}}\n"
	with := func(s string) string { return head + "targets:\n  iqn.2026-01.example:a: {luns: {0: r}, " + s + "}\n" }
	plain := "targets:\n  iqn.2026-01.example:a: {luns: {0: r}}\n"
	for text, want := range map[string]string{
		head + "portals: [{listen: \"127.0.0.1\", group: 0}]\n" + plain:     "portals/0/group: 0 is not between 1 and 65535",
		head + "portals: [{listen: \"127.0.0.1\", group: 65536}]\n" + plain: "portals/0/group: 65536 is not between",
		with("groups: [2]"):                                "groups/0: no portal is in group 2; give one group: 2",
		with("groups: [1, 1]"):                             "groups/1: group 1 stands here twice",
		with("groups: 1"):                                  "want a list",
		with("groups: []"):                                 "groups: nothing stands in it; leave it out",
		with("allow: []"):                                  "allow: nothing stands in it; leave it out",
		with("initiators: {}"):                             "initiators: nothing stands in it; leave it out",
		with("initiators:"):                                "initiators: nothing stands in it; leave it out",
		with("redirect: {to: \"h:1\", groups: []}"):        "groups: nothing stands in it; leave it out",
		with("max_connections: 5"):                         "max_connections: 5 is not between 1 and 4",
		with("max_connections: 0"):                         "max_connections: 0 is not between 1 and 4",
		with("redirect: {to: 192.0.2.5}"):                  "redirect/to: \"192.0.2.5\" is no place to go",
		with("redirect: {to: \"192.0.2.5:0\"}"):            "redirect/to: \"192.0.2.5:0\" is no place to go",
		with("redirect: {to: \"192.0.2.5:1\", groups: 9}"): "want a list",
		with("redirect: {to: \"a b:1\"}"):                  "redirect/to: \"a b:1\" is no place to go",
		with("redirect: {to: \"a:1,2:3\"}"):                "is no place to go",
		with("redirect: {to: \"a,b:1\"}"):                  "redirect/to: \"a,b:1\" is no place to go",
		with("redirect: {permanent: yes}"):                 "redirect/to: \"\" is no place to go",
	} {
		_, err := conf.Parse("x.yaml", []byte(text))
		assert.ErrorContains(t, err, want, text)
	}
}

// TestAPortalIsInsecureForItsGroupsOnly: what is not served through it needs no proof there.
func TestAPortalIsInsecureForItsGroupsOnly(t *testing.T) {
	text := `
version: 1
portals:
- {listen: "127.0.0.1:3260"}
- {listen: "192.0.2.1:3260", group: 2}
discovery: {enabled: no}
backstores: {r: {type: ram, size: 1MiB}}
targets:
  iqn.2026-01.example:a: {luns: {0: r}, groups: [GROUP]}
  iqn.2026-01.example:b: {luns: {0: r}, auth: {user: u, secret: 0123456789ab}}
`
	for group, ok := range map[string]bool{"1": true, "2": false, "1, 2": false} {
		_, err := conf.Parse("x.yaml", []byte(strings.Replace(text, "GROUP", group, 1)))
		assert.Equal(t, ok, err == nil, "%s: %v", group, err)
	}
}
