package dial

import (
	"flag"
	"fmt"
	"testing"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/require"
)

var benchURL = flag.String("url", "", "the disk that BenchmarkReads reads")

// BenchmarkReads reads a disk of another process in order, as libiscsi's iscsi-perf does; .ci/bench/initiator.sh runs both
// on the same target. The depth is one of a Batch, without goroutines.
func BenchmarkReads(b *testing.B) {
	if *benchURL == "" {
		b.Skip("needs -url")
	}
	for _, c := range []struct{ size, depth int }{{4 << 10, 1}, {4 << 10, 32}, {4 << 10, 128}, {1 << 20, 8}} {
		b.Run(fmt.Sprintf("%dKiB/%d", c.size>>10, c.depth), func(b *testing.B) {
			dialer := &Dialer{Options: initiator.Options{QueueDepth: max(c.depth, 32)}}
			d, err := dialer.Dial(b.Context(), *benchURL)
			require.NoError(b, err)
			readInOrder(b, d, c.size, c.depth)
			require.NoError(b, d.Close())
			require.NoError(b, dialer.Close())
		})
	}
}

// readInOrder keeps depth reads of size bytes under way, each in as many requests as it takes.
func readInOrder(b *testing.B, d *Disk, size, depth int) {
	part := min(size, d.MaxTransfer())
	each := size / part
	batch, err := d.Batch(depth * each)
	require.NoError(b, err)
	bufs := make([][]byte, depth*each)
	for i := range bufs {
		bufs[i] = make([]byte, part)
	}
	done := make([]initiator.Completion, len(bufs))
	at, added := int64(0), 0
	add := func(tag uint64) {
		require.NoError(b, batch.ReadAt(bufs[tag], at, tag))
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
