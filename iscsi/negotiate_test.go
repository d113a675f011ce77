package iscsi

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

var (
	tcpTraits  = Traits{Name: "tcp", MaxLoginData: 8192, MaxRecvData: 262144}
	iserTraits = Traits{Name: "iser", RDMA: true, MaxLoginData: 8192, MaxSendData: 128, MaxRecvData: 8192, DefaultInitialR2T: true}
)

func TestKeyTableIsComplete(t *testing.T) {
	names := map[string]bool{}
	for _, r := range keyTable {
		require.NotEmpty(t, r.name, "keyCount is larger than the table")
		assert.False(t, names[r.name], "%s stands twice", r.name)
		names[r.name] = true
		assert.False(t, IsLoginKey(r.name))
		if r.kind == kindList {
			assert.NotNil(t, r.takes, r.name)
			assert.NotEmpty(t, r.names, r.name)
		} else if r.kind != kindRefused {
			assert.LessOrEqual(t, r.min, r.max, r.name)
			assert.LessOrEqual(t, r.def, r.max, r.name)
		}
	}
	for _, k := range []string{"InitiatorName", "InitiatorAlias", "TargetName", "TargetAlias", "TargetAddress", "TargetPortalGroupTag", "SessionType", "AuthMethod", "CHAP_A", "CHAP_R"} {
		assert.True(t, IsLoginKey(k))
	}
	assert.False(t, IsLoginKey("SendTargets"))
}

// TestTranscripts runs the files of testdata/negotiation. The first line says whose side is tested, over
// which transport, in which kind of session, and what differs from DefaultConfig. Lines "I: " are the
// initiator's keys, "T: " the target's; an empty line ends an exchange; "!" is an error, and the last
// line what is in force. -update rewrites what our side says.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/negotiation/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runTranscript(t, string(want))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			assert.Equal(t, string(want), got)
		})
	}
}

type transcript struct {
	n        *Negotiation
	them, us string // line prefixes
	in       []KeyValue
	out      strings.Builder
}

func runTranscript(t *testing.T, text string) string {
	var s transcript
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
			fmt.Fprintln(&s.out, line)
		case s.n == nil:
			s.n, s.us, s.them = startTranscript(t, strings.Fields(line))
			fmt.Fprintln(&s.out, line)
		case line == "full feature":
			s.n.SetFullFeature()
			fmt.Fprintln(&s.out, line)
		case line == "offers":
			fmt.Fprintln(&s.out, line)
			s.say(s.n.Offers(), nil)
		case strings.HasPrefix(line, s.them):
			fmt.Fprintln(&s.out, line)
			key, value, _ := strings.Cut(strings.TrimPrefix(line, s.them), "=")
			s.in = append(s.in, KeyValue{key, value})
		case line == "" && s.in != nil:
			s.say(s.n.Receive(s.in))
			s.in = nil
			fmt.Fprintln(&s.out)
		case line == "":
			fmt.Fprintln(&s.out)
		}
	}
	require.Nil(t, s.in, "an exchange ends with an empty line")
	p, err := s.n.Result()
	if err != nil {
		fmt.Fprintln(&s.out, "!", err)
	} else {
		fmt.Fprintln(&s.out, "in force:", describe(p))
	}
	return s.out.String()
}

func (s *transcript) say(kvs []KeyValue, err error) {
	for _, kv := range kvs {
		fmt.Fprintf(&s.out, "%s%s=%s\n", s.us, kv.Key, kv.Value)
	}
	if err != nil {
		fmt.Fprintln(&s.out, "!", err)
	}
}

func startTranscript(t *testing.T, words []string) (n *Negotiation, us, them string) {
	require.GreaterOrEqual(t, len(words), 3)
	role, us, them := Target, "T: ", "I: "
	if words[0] == "initiator" {
		role, us, them = Initiator, them, us
	}
	tr, c := tcpTraits, DefaultConfig()
	if words[1] == "iser" {
		tr = iserTraits
	}
	if role == Initiator {
		tr.MaxSendData = 0 // the cap protects initiators
	}
	for _, w := range words[3:] {
		key, value, _ := strings.Cut(w, "=")
		yes := value == "Yes"
		v, _ := parseNumber(value)
		switch key {
		case "HeaderDigest":
			c.HeaderDigest = strings.Split(value, ",")
		case "DataDigest":
			c.DataDigest = strings.Split(value, ",")
		case "InitialR2T":
			c.InitialR2T = &yes
		case "ImmediateData":
			c.ImmediateData = yes
		case "MaxBurstLength":
			c.MaxBurstLength = v
		case "FirstBurstLength":
			c.FirstBurstLength = v
		default:
			require.Fail(t, "unknown setting "+w)
		}
	}
	return NewNegotiation(role, tr, c, words[2] == "discovery"), us, them
}

// describe lists the parameters that are neither false nor zero.
func describe(p Params) string {
	var words []string
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			words = append(words, v.Type().Field(i).Name)
		default:
			words = append(words, fmt.Sprintf("%s %d", v.Type().Field(i).Name, f.Uint()))
		}
	}
	return strings.Join(words, ", ")
}

func TestBothEndsAgree(t *testing.T) {
	no, yes := false, true
	for _, tr := range []Traits{tcpTraits, iserTraits} {
		for _, discovery := range []bool{false, true} {
			for _, ic := range []Config{DefaultConfig(), {}, {InitialR2T: &no, ImmediateData: true, FirstBurstLength: 1 << 20, MaxBurstLength: 4096}, {HeaderDigest: []string{"CRC32C", "None"}, DataDigest: []string{"CRC32C"}}} {
				for _, tc := range []Config{DefaultConfig(), {}, {InitialR2T: &yes}, {InitialR2T: &no, ImmediateData: true, MaxBurstLength: 1 << 30, HeaderDigest: []string{"CRC32C", "None"}, DataDigest: []string{"None", "CRC32C"}}} {
					name := fmt.Sprintf("%s discovery=%v %+v %+v", tr.Name, discovery, ic, tc)
					ini, tgt := NewNegotiation(Initiator, tr, ic, discovery), NewNegotiation(Target, tr, tc, discovery)
					answers, err := tgt.Receive(ini.Offers())
					require.NoError(t, err, name)
					rest, err := ini.Receive(answers)
					require.NoError(t, err, name)
					assert.Empty(t, rest, "one round is enough: %s", name)
					pi, err := ini.Result()
					require.NoError(t, err)
					pt, err := tgt.Result()
					require.NoError(t, err)
					if tr.MaxSendData == 0 || discovery {
						assert.Equal(t, pi.MaxSendData, pt.MaxRecvData, name)
						assert.Equal(t, pt.MaxSendData, pi.MaxRecvData, name)
					}
					pi.MaxSendData, pi.MaxRecvData = pt.MaxSendData, pt.MaxRecvData
					assert.Equal(t, pi, pt, name)
					assert.LessOrEqual(t, pt.FirstBurstLength, pt.MaxBurstLength)
				}
			}
		}
	}
}

func TestUnsolicitedPlan(t *testing.T) {
	for _, c := range []struct {
		name             string
		p                Params
		edtl             uint32
		immediate, total uint32
	}{
		{"none", Params{InitialR2T: true, FirstBurstLength: 65536, MaxSendData: 8192}, 100000, 0, 0},
		{"immediate", Params{InitialR2T: true, ImmediateData: true, FirstBurstLength: 65536, MaxSendData: 8192}, 100000, 8192, 8192},
		{"short", Params{InitialR2T: true, ImmediateData: true, FirstBurstLength: 65536, MaxSendData: 8192}, 512, 512, 512},
		{"small burst", Params{InitialR2T: true, ImmediateData: true, FirstBurstLength: 4096, MaxSendData: 8192}, 100000, 4096, 4096},
		{"both", Params{ImmediateData: true, FirstBurstLength: 65536, MaxSendData: 8192}, 100000, 8192, 65536},
		{"both, short", Params{ImmediateData: true, FirstBurstLength: 65536, MaxSendData: 8192}, 10000, 8192, 10000},
		{"data-out only", Params{FirstBurstLength: 65536, MaxSendData: 8192}, 100000, 0, 65536},
		{"no data", Params{ImmediateData: true, FirstBurstLength: 65536, MaxSendData: 8192}, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, u := c.p.Unsolicited(c.edtl)
			assert.Equal(t, [2]uint32{c.immediate, c.total}, [2]uint32{i, u})
			assert.Equal(t, u, c.p.Announced(c.edtl, i, u == i), "the target sees the same")
		})
	}
}

func FuzzNegotiation(f *testing.F) {
	files, _ := filepath.Glob("testdata/negotiation/*.txt")
	for i, file := range files {
		text, _ := os.ReadFile(file)
		var kvs []KeyValue
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line[min(3, len(line)):]), "="); ok && (line[0] == 'I' || line[0] == 'T') {
				kvs = append(kvs, KeyValue{key, value})
			}
		}
		f.Add(AppendText(nil, kvs...), uint8(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, bits uint8) {
		role, tr := Role(bits&1), tcpTraits
		if bits&2 != 0 {
			tr = iserTraits
		}
		n := NewNegotiation(role, tr, DefaultConfig(), bits&4 != 0)
		if role == Initiator {
			n.Offers()
		}
		kvs, err := ParseText(b)
		if err != nil {
			return
		}
		checkExchange(t, n, kvs)
		checkExchange(t, n, kvs) // again the same
	})
}

func checkExchange(t *testing.T, n *Negotiation, kvs []KeyValue) {
	answers, err := n.Receive(kvs)
	var refused *LoginError
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("%T is not a LoginError", err)
	}
	offered, answered := map[string]bool{}, map[string]bool{}
	for _, kv := range kvs {
		offered[kv.Key] = true
	}
	for _, kv := range answers {
		require.False(t, answered[kv.Key], "%s answered twice", kv.Key)
		answered[kv.Key] = true
		require.True(t, offered[kv.Key] || kv.Key == keyMaxRecvDSL, "%s was not offered", kv.Key)
	}
	if err == nil && n.role == Target {
		for key := range offered {
			i := rowOf(key, &n.traits)
			declared := i >= 0 && (keyTable[i].kind == kindDeclare || keyTable[i].kind == kindDeclareBool)
			value := ""
			for _, kv := range kvs {
				if kv.Key == key {
					value = kv.Value
				}
			}
			silent := IsLoginKey(key) || declared || i < 0 && (value == valueReject || value == valueNotUnderstood || value == valueIrrelevant)
			require.True(t, silent || answered[key], "%s was not answered", key)
		}
	}
	p, err := n.Result()
	if err != nil {
		return
	}
	require.LessOrEqual(t, p.FirstBurstLength, p.MaxBurstLength)
	require.LessOrEqual(t, p.MaxSendData, uint32(maxDSL))
	require.GreaterOrEqual(t, p.MaxBurstLength, uint32(minDSL))
	require.Zero(t, p.ErrorRecoveryLevel)
	require.Equal(t, uint32(1), p.MaxConnections)
}
