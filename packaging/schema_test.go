package packaging

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const schemaFile = "iserd.schema.json"

// A schema is JSON Schema, as much of it as editors use.
type schema map[string]any

// object is a mapping of these keys and no others.
func object(properties map[string]schema) schema {
	return schema{"type": "object", "properties": properties, "additionalProperties": false}
}

// mapping is one of any keys that match.
func mapping(key string, of schema) schema {
	return schema{"type": "object", "patternProperties": map[string]schema{key: of}, "additionalProperties": false}
}

func list(of schema) schema           { return schema{"type": "array", "items": of} }
func about(s schema, d string) schema { s = maps.Clone(s); s["description"] = d; return s }
func words(w ...string) schema        { return schema{"enum": w} }
func text(d string) schema            { return schema{"type": "string", "description": d} }

// The shapes of values, as conf reads them.
var (
	number   = schema{"type": "integer"}
	size     = schema{"type": []string{"integer", "string"}, "description": "bytes, or a number with k, m, g or t: powers of 1024"}
	flag     = schema{"enum": []any{true, false, "yes", "no"}}
	address  = text("ADDRESS:PORT with a numeric address, as \"127.0.0.1:3260\"")
	groups   = list(number)
	identity = map[string]schema{"user": text("its name"), "secret": text("12 to 255 bytes"), "secret_file": text("a file with the secret in one line")}
)

// auth is what has to be proved.
func auth() schema {
	keys := maps.Clone(identity)
	keys["mutual"] = about(object(identity), "what initiators that ask are proved")
	keys["algorithms"] = list(words("sha3-256", "sha256", "sha1", "md5"))
	return schema{"anyOf": []schema{words("none"), object(keys)}}
}

// store is one of all types, each with its options.
func store() schema {
	var types []schema
	for _, t := range backstore.Types() {
		keys := map[string]schema{"type": {"const": t.Name, "description": t.Summary}}
		required := []string{"type"}
		for _, o := range t.Options {
			s := schema{"description": o.Summary}
			if len(o.Values) > 0 {
				s["enum"] = o.Values
				if slices.Equal(o.Values, []string{"yes", "no"}) {
					s["enum"] = flag["enum"]
				}
			}
			if o.Default != "" {
				s["default"] = o.Default
			}
			keys[o.Name] = s
			if o.Required {
				required = append(required, o.Name)
			}
		}
		s := object(keys)
		s["required"] = required
		types = append(types, s)
	}
	return schema{"anyOf": types}
}

func target() schema {
	return object(map[string]schema{
		"enabled": about(flag, "no: nobody can log in or see it"),
		"alias":   text("shown by initiators"),
		"luns": mapping("^[0-9]+$", schema{"anyOf": []schema{
			text("the name of a store"),
			object(map[string]schema{"store": text("its name"), "readonly": flag, "block_size": {"enum": []int{512, 4096}}}),
		}}),
		"allow": about(list(schema{"type": "string"}), "names of initiators and networks that may use it"),
		"auth":  auth(),
		"initiators": mapping("", object(map[string]schema{
			"auth": auth(), "luns": about(list(number), "those it sees"), "readonly": flag,
		})),
		"groups":          about(groups, "portal groups through which it is served"),
		"redirect":        object(map[string]schema{"to": text("ADDRESS:PORT or NAME:PORT"), "permanent": flag, "groups": groups}),
		"alua":            mapping("^[0-9]+$", words("optimized", "non-optimized", "standby", "unavailable")),
		"initial_r2t":     flag,
		"immediate_data":  flag,
		"first_burst":     size,
		"max_burst":       size,
		"max_connections": number,
	})
}

func whole() schema {
	s := object(map[string]schema{
		"version":    {"const": conf.Version},
		"insecure":   about(flag, "the network is trusted"),
		"state_dir":  text("where persistent reservations are kept"),
		"auth":       auth(),
		"discovery":  object(map[string]schema{"enabled": flag, "auth": auth()}),
		"isns":       object(map[string]schema{"server": text("NAME:PORT"), "entity": text("what this host is called there")}),
		"portals":    list(object(map[string]schema{"listen": address, "provider": words("auto", "verbs", "roce", "tcp"), "advertise": address, "group": number, "external": text("an address")})),
		"backstores": mapping("^[-A-Za-z0-9_.]+$", store()),
		"targets":    mapping("", target()),
		"limits": object(map[string]schema{
			"sessions": number, "sessions_per_initiator": number, "connections_per_address": number, "logins": number,
			"login_timeout": text("as 15s"), "commands_per_session": number, "buffers": size, "max_transfer": size,
		}),
	})
	s["$schema"] = "http://json-schema.org/draft-07/schema#"
	s["title"] = "configuration of iserd"
	s["required"] = []string{"version"}
	return s
}

// UPDATE_PACKAGING=1 writes the schema anew.
func TestSchemaIsWhatItsMakerMakes(t *testing.T) {
	b, err := json.MarshalIndent(whole(), "", "  ")
	require.NoError(t, err)
	b = append(b, '\n')
	if os.Getenv("UPDATE_PACKAGING") != "" {
		require.NoError(t, os.WriteFile(schemaFile, b, 0o644))
	}
	have, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	assert.Equal(t, string(b), string(have), "run: UPDATE_PACKAGING=1 go test ./packaging")
}

// keysOf are the keys that conf says it knows where a document has one that it does not know.
func keysOf(t *testing.T, document string) []string {
	t.Helper()
	_, err := conf.Parse("x", []byte(document))
	require.Error(t, err)
	m := regexp.MustCompile(`unknown key; there are ([a-z0-9_, ]+)`).FindStringSubmatch(err.Error())
	require.NotNil(t, m, "%v", err)
	keys := strings.Split(strings.TrimSpace(m[1]), ", ")
	slices.Sort(keys)
	return keys
}

func properties(s schema) []string {
	return slices.Sorted(maps.Keys(s["properties"].(map[string]schema)))
}

// The schema has the keys that conf knows, everywhere.
func TestSchemaHasTheKeysOfTheReader(t *testing.T) {
	top := whole()["properties"].(map[string]schema)
	of := target()["properties"].(map[string]schema)
	inTarget := func(s string) string { return "version: 1\ntargets:\n  iqn.2026-01.example:a:\n    " + s + "\n" }
	second := func(s schema) schema { return s["anyOf"].([]schema)[1] }
	for document, s := range map[string]schema{
		"version: 1\nwrong: 1\n":                                        whole(),
		"version: 1\nlimits: {wrong: 1}\n":                              top["limits"],
		"version: 1\ndiscovery: {wrong: 1}\n":                           top["discovery"],
		"version: 1\nisns: {wrong: 1}\n":                                top["isns"],
		"version: 1\nportals: [{wrong: 1}]\n":                           top["portals"]["items"].(schema),
		"version: 1\nauth: {wrong: 1}\n":                                second(auth()),
		"version: 1\nauth: {mutual: {wrong: 1}}\n":                      second(auth())["properties"].(map[string]schema)["mutual"],
		inTarget("wrong: 1"):                                            target(),
		inTarget("redirect: {wrong: 1}"):                                of["redirect"],
		inTarget("luns: {0: {wrong: 1}}"):                               second(of["luns"]["patternProperties"].(map[string]schema)["^[0-9]+$"]),
		inTarget("initiators: {\"iqn.2026-01.example:i\": {wrong: 1}}"): of["initiators"]["patternProperties"].(map[string]schema)[""],
	} {
		assert.Equal(t, keysOf(t, document), properties(s), document)
	}
}
