package iscsi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An offer is what an initiator offers of a key, and what becomes of it.
type offer struct {
	value  string
	answer string // of the target; "" none; "!" the login fails
	result uint32 // in force afterwards
}

// keyRules is every operational key against RFC 7143, 13 and RFC 7145, 6: the target's own value, the key's result
// function, its range, and what is not of its type. A refused value leaves the default in force (RFC 7143, 6.2).
var keyRules = []struct {
	key    string
	rdma   bool
	config func(*Config)
	offers []offer
}{
	// 13.1: lists; the initiator's order counts.
	{key: "HeaderDigest", offers: []offer{
		{"None", "None", 0},
		{"CRC32C", "Reject", 0},
		{"CRC32C,None", "None", 0},
		{"X-other,None", "None", 0},
		{"none", "Reject", 0},
		{"", "Reject", 0},
	}},
	{key: "HeaderDigest", config: func(c *Config) { c.HeaderDigest = []string{"CRC32C", "None"} }, offers: []offer{
		{"None,CRC32C", "None", 0},
		{"CRC32C,None", "CRC32C", 1},
		{"CRC32C", "CRC32C", 1},
	}},
	{key: "DataDigest", config: func(c *Config) { c.DataDigest = []string{"CRC32C"} }, offers: []offer{
		{"CRC32C,None", "CRC32C", 1},
		{"None", "Reject", 0},
	}},
	{key: "DataDigest", rdma: true, offers: []offer{{"CRC32C", "None", 0}, {"CRC32C,None", "None", 0}}}, // 7145, 6.1
	// 13.2: minimum, 1 to 65535.
	{key: "MaxConnections", config: func(c *Config) { c.MaxConnections = 4 }, offers: []offer{
		{"1", "1", 1},
		{"4", "4", 4},
		{"65535", "4", 4},
		{"0x2", "2", 2},
		{"0", "Reject", 1},
		{"65536", "Reject", 1},
		{"-1", "Reject", 1},
		{"", "Reject", 1},
		{"one", "Reject", 1},
		{"1 ", "Reject", 1},
		{"0x", "Reject", 1},
		{"4294967297", "Reject", 1},
	}},
	// 13.10: OR, default Yes.
	{key: "InitialR2T", offers: []offer{
		{"Yes", "Yes", 1}, {"No", "No", 0}, {"yes", "Reject", 1}, {"1", "Reject", 1}, {"Yes,No", "Reject", 1}, {"", "Reject", 1},
	}},
	{key: "InitialR2T", rdma: true, offers: []offer{{"No", "Yes", 1}, {"Yes", "Yes", 1}}},
	// 13.11: AND, default Yes.
	{key: "ImmediateData", offers: []offer{{"Yes", "Yes", 1}, {"No", "No", 0}, {"Maybe", "Reject", 1}}},
	{key: "ImmediateData", config: func(c *Config) { c.ImmediateData = false }, offers: []offer{{"Yes", "No", 0}, {"No", "No", 0}}},
	// 13.12: declared, 512 to 2^24-1, no answer.
	{key: "MaxRecvDataSegmentLength", offers: []offer{
		{"512", "", 512}, {"16777215", "", 16777215}, {"511", "!", 0}, {"16777216", "!", 0}, {"None", "!", 0}, {"", "!", 0},
	}},
	// 13.13 and 13.14: minimum, 512 to 2^24-1.
	{key: "MaxBurstLength", offers: []offer{
		{"512", "512", 512}, {"262144", "262144", 262144}, {"16777215", "1048576", 1048576}, {"511", "Reject", 262144}, {"16777216", "Reject", 262144},
	}},
	{key: "FirstBurstLength", offers: []offer{
		{"512", "512", 512}, {"262144", "65536", 65536}, {"511", "Reject", 65536}, {"16777216", "Reject", 65536},
	}},
	// 13.15: maximum, 0 to 3600.
	{key: "DefaultTime2Wait", offers: []offer{{"0", "2", 2}, {"5", "5", 5}, {"3600", "3600", 3600}, {"3601", "Reject", 2}}},
	// 13.16: minimum, 0 to 3600.
	{key: "DefaultTime2Retain", offers: []offer{{"0", "0", 0}, {"20", "0", 0}, {"3600", "0", 0}, {"3601", "Reject", 20}}},
	{key: "DefaultTime2Retain", config: func(c *Config) { c.DefaultTime2Retain = 60 }, offers: []offer{{"20", "20", 20}, {"61", "60", 60}}},
	// 13.17: minimum, 1 to 65535.
	{key: "MaxOutstandingR2T", offers: []offer{{"1", "1", 1}, {"16", "1", 1}, {"0", "Reject", 1}, {"65536", "Reject", 1}}},
	{key: "MaxOutstandingR2T", config: func(c *Config) { c.MaxOutstandingR2T = 8 }, offers: []offer{{"16", "8", 8}, {"3", "3", 3}}},
	// 13.18 and 13.19: OR.
	{key: "DataPDUInOrder", offers: []offer{{"Yes", "Yes", 1}, {"No", "Yes", 1}, {"0", "Reject", 1}}},
	{key: "DataSequenceInOrder", offers: []offer{{"Yes", "Yes", 1}, {"No", "Yes", 1}, {"0", "Reject", 1}}},
	// 13.20: minimum, 0 to 2: we have 0.
	{key: "ErrorRecoveryLevel", offers: []offer{{"0", "0", 0}, {"1", "0", 0}, {"2", "0", 0}, {"3", "Reject", 0}, {"x", "Reject", 0}}},
	// 13.23 and 13.24 (RFC 7144, 7.1).
	{key: "TaskReporting", offers: []offer{{"RFC3720", "RFC3720", 0}, {"FastAbort,RFC3720", "RFC3720", 0}, {"FastAbort", "Reject", 0}}},
	{key: "iSCSIProtocolLevel", offers: []offer{{"0", "0", 0}, {"1", "1", 1}, {"2", "2", 2}, {"3", "2", 2}, {"31", "2", 2}, {"-1", "Reject", 1}, {"32", "Reject", 1}}},
	// 13.25: obsolete.
	{key: "IFMarker", offers: []offer{{"No", "No", 0}, {"Yes", "No", 0}}},
	{key: "OFMarker", offers: []offer{{"No", "No", 0}, {"Yes", "No", 0}}},
	{key: "IFMarkInt", offers: []offer{{"2048~8192", "Reject", 0}}},
	{key: "OFMarkInt", offers: []offer{{"1~65535", "Reject", 0}}},
	// RFC 7145, 6.3 to 6.9.
	{key: "RDMAExtensions", offers: []offer{{"Yes", "No", 0}, {"No", "No", 0}}},
	{key: "RDMAExtensions", rdma: true, offers: []offer{{"Yes", "Yes", 1}, {"No", "!", 0}}},
	{key: "InitiatorRecvDataSegmentLength", rdma: true, offers: []offer{
		{"512", "512", 512}, {"262144", "8192", 8192}, {"511", "Reject", 8192}, {"16777216", "Reject", 8192},
	}},
	{key: "TargetRecvDataSegmentLength", rdma: true, offers: []offer{{"512", "512", 512}, {"262144", "8192", 8192}, {"0", "Reject", 8192}}},
	{key: "MaxOutstandingUnexpectedPDUs", rdma: true, offers: []offer{{"0", "", 0}, {"4294967295", "", 1<<32 - 1}, {"x", "!", 0}}},
	{key: "MaxAHSLength", rdma: true, offers: []offer{{"256", "", 256}, {"-1", "!", 0}}},
	{key: "TaggedBufferForSolicitedDataOnly", rdma: true, offers: []offer{{"Yes", "", 1}, {"No", "", 0}, {"x", "!", 0}}},
	{key: "iSERHelloRequired", rdma: true, offers: []offer{{"No", "", 0}, {"Yes", "!", 0}, {"x", "!", 0}}},
}

func TestEveryKeyByItsRule(t *testing.T) {
	tried := map[string]bool{}
	for _, rule := range keyRules {
		tried[rule.key] = true
		for _, o := range rule.offers {
			tr := tcpTraits
			if rule.rdma {
				tr = iserTraits
			}
			c := DefaultConfig()
			if rule.config != nil {
				rule.config(&c)
			}
			n := NewNegotiation(Target, tr, c, false)
			kvs := []KeyValue{{rule.key, o.value}}
			if rule.rdma && rule.key != "RDMAExtensions" {
				kvs = append(kvs, KeyValue{"RDMAExtensions", "Yes"})
			}
			answers, err := n.Receive(kvs)
			what := rule.key + "=" + o.value
			if o.answer == "!" {
				var le *LoginError
				require.ErrorAs(t, err, &le, what)
				assert.Equal(t, LoginInitiatorError, le.Status, what)
				continue
			}
			require.NoError(t, err, what)
			got := ""
			for _, a := range answers {
				if a.Key == rule.key && rule.key != "MaxRecvDataSegmentLength" { // that is our own declaration
					got = a.Value
				}
			}
			assert.Equal(t, o.answer, got, what)
			assert.Equal(t, o.result, n.value(rule.key), "in force after %s", what)
			_, err = n.Result()
			require.NoError(t, err, what)
		}
	}
	for i := range keyTable {
		assert.True(t, tried[keyTable[i].name], "%s has no rule here", keyTable[i].name)
	}
}

// TestKeysOfASessionAreNotNegotiatedByItsLaterConnections: RFC 7143, 13, "Use: LO". Digests and data segment lengths
// are each connection's own.
func TestKeysOfASessionAreNotNegotiatedByItsLaterConnections(t *testing.T) {
	own := "HeaderDigest DataDigest MaxRecvDataSegmentLength RDMAExtensions IFMarker OFMarker IFMarkInt OFMarkInt" +
		" InitiatorRecvDataSegmentLength TargetRecvDataSegmentLength MaxOutstandingUnexpectedPDUs MaxAHSLength" +
		" TaggedBufferForSolicitedDataOnly iSERHelloRequired"
	for i := range keyTable {
		r := &keyTable[i]
		assert.Equal(t, strings.Contains(" "+own+" ", " "+r.name+" "), r.use&onlyLeading == 0, r.name)
		if r.use&onlyLeading == 0 {
			continue
		}
		n := NewNegotiation(Target, tcpTraits, DefaultConfig(), false)
		n.SetJoining()
		answers, err := n.Receive([]KeyValue{{r.name, "512"}})
		require.NoError(t, err)
		require.Equal(t, KeyValue{r.name, "Irrelevant"}, answers[0])
		assert.Equal(t, r.def, n.value(r.name))
	}
	n := NewNegotiation(Target, iserTraits, DefaultConfig(), false)
	n.SetJoining()
	_, err := n.Receive([]KeyValue{{"InitiatorRecvDataSegmentLength", "1024"}})
	require.NoError(t, err)
	p, err := n.Result()
	require.NoError(t, err, "RDMAExtensions was agreed on by the first connection")
	assert.EqualValues(t, 128, p.MaxSendData)
	assert.Equal(t, Params{MaxBurstLength: 7, HeaderDigest: true, MaxSendData: 1},
		Params{MaxBurstLength: 7, MaxSendData: 9}.WithConnection(&Params{HeaderDigest: true, MaxSendData: 1, MaxBurstLength: 5}))
}
