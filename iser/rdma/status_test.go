package rdma_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goiser/goiser/iser/rdma"
)

func TestStatusIsNamedAsInLibibverbs(t *testing.T) {
	for s, want := range map[rdma.Status]string{
		0:  "success (0)",
		1:  "local length error (1)",
		5:  "Work Request Flushed Error (5)",
		9:  "remote invalid request error (9)",
		13: "RNR retry counter exceeded (13)",
		21: "general error (21)",
		3:  "unknown status (3)",
		99: "unknown status (99)",
	} {
		assert.Equal(t, want, s.String())
	}
}

func TestOpCodesAreNamed(t *testing.T) {
	for o := rdma.OpSend; o <= rdma.OpBindWindow; o++ {
		assert.NotContains(t, o.String(), "opcode", "%d", uint8(o))
	}
	assert.Equal(t, "opcode 77", rdma.OpCode(77).String())
}

func TestLengthDoesNotWrap(t *testing.T) {
	sgl := []rdma.SGE{{Length: math.MaxUint32}, {Length: math.MaxUint32}, {Length: 2}}
	assert.Equal(t, uint64(1)<<33, rdma.Length(sgl))
	assert.Zero(t, rdma.Length(nil))
}

func TestRemoteWriteNeedsLocalWrite(t *testing.T) {
	assert.Error(t, rdma.RemoteWrite.Check())
	assert.NoError(t, (rdma.RemoteWrite | rdma.LocalWrite).Check())
	assert.NoError(t, rdma.RemoteRead.Check())
}
