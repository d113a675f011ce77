package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNoAllocationPerIO(t *testing.T) {
	p := params()
	a, b := socketPair(t)
	c, _ := rig(t, a, b, p, p, 1<<21)
	var r request
	buf := [][]byte{make([]byte, 4096)}
	long := [][]byte{make([]byte, 256<<10)}
	for _, k := range []struct {
		name    string
		in, out [][]byte
	}{{"read", buf, nil}, {"write", nil, buf}, {"long read", long, nil}, {"long write", nil, long}} {
		io := func() {
			c.submit(&r, 0, k.in, k.out)
			if err := c.wait(&r); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			io()
		}
		assert.Less(t, testing.AllocsPerRun(500, io), 1.0, k.name)
	}
}

func BenchmarkIO(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, depth := range []int{1, 32} {
			for _, op := range []string{"read", "write"} {
				b.Run(fmt.Sprintf("%s-%dKiB-qd%d", op, size>>10, depth), func(b *testing.B) { benchIO(b, op, size, depth) })
			}
		}
	}
}

func benchIO(b *testing.B, op string, size, depth int) {
	p := params()
	x, y := socketPair(b)
	c, _ := rig(b, x, y, p, p, 2<<20)
	reqs := make([]request, depth+1)
	bufs := make([][][]byte, depth)
	submit := func(i int) {
		if op == "read" {
			c.submit(&reqs[i], 0, bufs[i], nil)
		} else {
			c.submit(&reqs[i], 0, nil, bufs[i])
		}
		reqs[i].Tag = uint32(i)
	}
	for i := range depth {
		bufs[i] = [][]byte{make([]byte, size)}
		submit(i)
	}
	find := func(t *iscsi.Transfer) *request { return &reqs[t.Tag] }
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		require.NoError(b, c.turn(time.Time{}, find))
		for i := range depth {
			if reqs[i].responded && reqs[i].released {
				done++
				submit(i)
			}
		}
	}
	b.StopTimer()
}
