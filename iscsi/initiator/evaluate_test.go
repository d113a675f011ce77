package initiator

import (
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEvaluate is checklist 151 and 152.
func TestEvaluate(t *testing.T) {
	read, write := &Command{In: make([]byte, 100)}, &Command{Out: make([]byte, 100)}
	sense := []byte{0, 2, 0x70, 0}
	for _, c := range []struct {
		name   string
		cmd    *Command
		rsp    iscsi.SCSIResponse
		data   []byte
		placed uint32
		want   Result
		err    string
	}{
		{"read", read, iscsi.SCSIResponse{}, nil, 100, Result{Received: 100}, ""},
		{"short read", read, iscsi.SCSIResponse{Underflow: true, Residual: 60}, nil, 40, Result{Received: 40, Underflow: true, Residual: 60}, ""},
		{"nothing read", read, iscsi.SCSIResponse{Underflow: true, Residual: 100}, nil, 0, Result{Underflow: true, Residual: 100}, ""},
		{"more than fits", read, iscsi.SCSIResponse{Overflow: true, Residual: 1 << 30}, nil, 100, Result{Received: 100, Overflow: true, Residual: 1 << 30}, ""},
		{"placed beyond the residual", read, iscsi.SCSIResponse{Underflow: true, Residual: 60}, nil, 100, Result{Received: 40, Underflow: true, Residual: 60}, ""},
		{"data lost", read, iscsi.SCSIResponse{}, nil, 99, Result{}, "99 of 100 bytes"},
		{"underflow and overflow", read, iscsi.SCSIResponse{Underflow: true, Overflow: true, Residual: 1}, nil, 100, Result{}, "at once"},
		{"underflow beyond the length", write, iscsi.SCSIResponse{Underflow: true, Residual: 101}, nil, 0, Result{}, "101 bytes of 100"},
		{"residual without a bit", write, iscsi.SCSIResponse{Residual: 7}, nil, 0, Result{}, ""},
		{"target failure", write, iscsi.SCSIResponse{Response: 1, Status: 2}, sense, 0, Result{}, "not completed"},
		{"busy, with stray data", write, iscsi.SCSIResponse{Status: 8}, sense, 0, Result{Status: 8}, ""},
		{"check condition", read, iscsi.SCSIResponse{Status: 2}, sense, 10, Result{Status: 2, Sense: []byte{0x70, 0}, Received: 10}, ""},
		{"padded sense", read, iscsi.SCSIResponse{Status: 2}, append(sense, 9, 9), 0, Result{Status: 2, Sense: []byte{0x70, 0}}, ""},
		{"sense of 0 bytes", read, iscsi.SCSIResponse{Status: 2}, []byte{0, 0}, 0, Result{Status: 2}, ""},
		{"sense too long", read, iscsi.SCSIResponse{Status: 2}, []byte{0, 3, 0x70, 0}, 0, Result{}, "sense data of 3 bytes"},
		{"sense far too long", read, iscsi.SCSIResponse{Status: 2}, []byte{0xff, 0xff, 0x70, 0}, 0, Result{}, "sense data of 65535"},
		{"no data segment", read, iscsi.SCSIResponse{Status: 2}, nil, 0, Result{}, "segment of 0 bytes"},
		{"one byte", read, iscsi.SCSIResponse{Status: 2}, []byte{0}, 0, Result{}, "segment of 1 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := evaluate(&c.rsp, c.data, c.cmd, c.placed)
			if c.err != "" {
				var broken *ProtocolError
				require.ErrorAs(t, err, &broken)
				assert.ErrorContains(t, err, c.err)
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, c.want, got)
		})
	}
}
