package conf_test

import (
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const threeGroups = `
version: 1
portals:
- {listen: "127.0.0.3:3260", group: 300}
- {listen: "127.0.0.1:3260"}
- {listen: "127.0.0.2:3260", group: 2}
- {listen: "127.0.0.4:3260", group: 2}
backstores: {r: {type: ram, size: 1MiB}}
targets:
  iqn.2026-01.example:a: {luns: {0: r}, `

func TestAccessStatesOfPortalGroups(t *testing.T) {
	for yaml, want := range map[string][]scsi.PortGroup{
		"}":                                     {{ID: 1}, {ID: 2}, {ID: 300}},
		"alua: {2: standby, 1: non-optimized}}": {{ID: 1, State: scsi.NonOptimized}, {ID: 2, State: scsi.Standby}, {ID: 300}},
		"alua: {300: unavailable, 2: optimized}, groups: [2, 300]}":   {{ID: 2}, {ID: 300, State: scsi.Unavailable}},
		"redirect: {to: \"h:1\", groups: [300]}, alua: {1: standby}}": {{ID: 1, State: scsi.Standby}, {ID: 2}},
	} {
		c, err := conf.Parse("x.yaml", []byte(threeGroups+yaml+"\n"))
		require.NoError(t, err, yaml)
		assert.Equal(t, want, c.PortGroups(&c.Targets[0]), yaml)
	}
}

func TestMistakesInAccessStates(t *testing.T) {
	for yaml, want := range map[string]string{
		"alua: {3: standby}}":                 "targets/iqn.2026-01.example:a/alua/3: the target is not served through portal group 3",
		"alua: {2: standby}, groups: [1]}":    "alua/2: the target is not served through portal group 2",
		"alua: {0: standby}}":                 `alua/0: "0" is no portal group; they go from 1 to 65535`,
		"alua: {65536: standby}}":             `"65536" is no portal group`,
		"alua: {01: standby}}":                `"01" is no portal group`,
		"alua: {1: offline}}":                 `alua/1: want optimized, non-optimized, standby or unavailable, and not "offline"`,
		"alua: {1: transitioning}}":           "want optimized, non-optimized, standby or unavailable",
		"alua: {1: [standby]}}":               "and not a list",
		"alua: [standby]}":                    "alua: want keys and values, and not a list",
		"alua: {1: standby, 1: unavailable}}": "already defined",
	} {
		_, err := conf.Parse("x.yaml", []byte(threeGroups+yaml+"\n"))
		assert.ErrorContains(t, err, want, yaml)
	}
}
