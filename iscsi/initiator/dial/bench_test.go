package dial

import (
	"flag"
	"fmt"
	"testing"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/require"
)

var benchURL = flag.String("url", "", "the disk that BenchmarkURL reads and overwrites")

// BenchmarkURL reads and writes a disk of another process in order, as libiscsi's iscsi-perf and .ci/bench/load.c do;
// .ci/bench/initiator.sh runs them all on the same target. The depth is one of a Batch, without goroutines.
func BenchmarkURL(b *testing.B) {
	if *benchURL == "" {
		b.Skip("needs -url")
	}
	for _, write := range []bool{false, true} {
		for _, c := range []struct{ size, depth int }{{4 << 10, 1}, {4 << 10, 32}, {4 << 10, 128}, {1 << 20, 8}} {
			name := "read"
			if write {
				name = "write"
			}
			b.Run(fmt.Sprintf("%s/%dKiB/%d", name, c.size>>10, c.depth), func(b *testing.B) {
				dialer := &Dialer{Options: initiator.Options{QueueDepth: max(c.depth, 32)}}
				d, err := dialer.Dial(b.Context(), *benchURL)
				require.NoError(b, err)
				inOrder(b, d, write, c.size, c.depth)
				require.NoError(b, d.Close())
				require.NoError(b, dialer.Close())
			})
		}
	}
}

// inOrder keeps depth reads or writes of size bytes under way, each in as many requests as it takes.
func inOrder(b *testing.B, d *Disk, write bool, size, depth int) {
	part := min(size, d.MaxTransfer())
	each := size / part
	batch, err := d.Batch(depth * each)
	require.NoError(b, err)
	bufs := make([][]byte, depth*each)
	for i := range bufs {
		bufs[i] = make([]byte, part)
	}
	done := make([]initiator.Completion, len(bufs))
	do := batch.ReadAt
	if write {
		do = batch.WriteAt
	}
	at, added := int64(0), 0
	add := func(tag uint64) {
		require.NoError(b, do(bufs[tag], at, tag))
		added++
		if at += int64(part); at+int64(part) > d.SizeBytes() {
			at = 0
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range min(len(bufs), b.N*each) {
		add(uint64(i))
	}
	for ended := 0; ended < b.N*each; {
		n, err := batch.Wait(b.Context(), done, 1)
		require.NoError(b, err)
		for _, c := range done[:n] {
			if c.Err != nil {
				b.Fatal(c.Err)
			}
			if ended++; added < b.N*each {
				add(c.Tag)
			}
		}
	}
	b.StopTimer()
	batch.Close()
}
