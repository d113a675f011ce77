package trace_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goiser/goiser/cmd/trace"
	"github.com/goiser/goiser/iser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	var b bytes.Buffer
	w := trace.Writer(&b, "target")
	e := iser.TraceEvent{Step: iser.TraceWritePosted, ITT: 1, Key: 2, Addr: 1 << 63, Length: 4, Word: 5}
	w(e)
	w(iser.TraceEvent{Step: iser.TraceSendDone})
	var got []trace.Event
	require.NoError(t, trace.Read(&b, func(e trace.Event) { got = append(got, e) }))
	require.Len(t, got, 2)
	assert.LessOrEqual(t, got[0].At, got[1].At)
	got[0].At = 0
	assert.Equal(t, trace.Event{Side: "target", Step: e.Step, Tag: 1, Key: 2, Addr: 1 << 63, Length: 4, Word: 5}, got[0])
}

type broken struct{ n int }

func (b *broken) Write([]byte) (int, error) { b.n++; return 0, errors.New("broken pipe") }

func TestAReaderThatIsGoneEndsTheTracing(t *testing.T) {
	var b broken
	w := trace.Writer(&b, "target")
	w(iser.TraceEvent{})
	w(iser.TraceEvent{})
	assert.Equal(t, 1, b.n)
}

func TestReadTellsOfRubbish(t *testing.T) {
	assert.Error(t, trace.Read(bytes.NewBufferString("{\"at_ns\": 1}\nrubbish"), func(trace.Event) {}))
}
