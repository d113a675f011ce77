package conf_test

import (
	"strings"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
)

func TestISNS(t *testing.T) {
	for text, want := range map[string]conf.ISNS{
		`{server: "isns.example:3206", entity: box}`: {Server: "isns.example:3206", Entity: "box"},
		`{server: isns.example}`:                     {Server: "isns.example:3205"},
		`{server: "192.0.2.1"}`:                      {Server: "192.0.2.1:3205"},
		`{server: "2001:db8::1"}`:                    {Server: "[2001:db8::1]:3205"},
		`{server: "[2001:db8::1]"}`:                  {Server: "[2001:db8::1]:3205"},
		`{server: "[2001:db8::1]:9"}`:                {Server: "[2001:db8::1]:9"},
	} {
		c, err := conf.Parse("x.yaml", []byte(small+"isns: "+text+"\n"))
		if assert.NoError(t, err, text) {
			assert.Equal(t, want, c.ISNS, text)
		}
	}
	for text, want := range map[string]string{
		`{}`:                         "no server",
		`{server: "h:0"}`:            "is no server",
		`{server: ":3205"}`:          "is no server",
		`{server: "a b"}`:            "is no server",
		`{server: h, entity: "a b"}`: "is no name of an entity",
		`{server: h, entity: ` + strings.Repeat("x", 256) + `}`: "is no name of an entity",
		`{host: h}`: "unknown key",
	} {
		_, err := conf.Parse("x.yaml", []byte(small+"isns: "+text+"\n"))
		assert.ErrorContains(t, err, want, text)
	}
}
