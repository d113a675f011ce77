package target

import (
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReserveIsCutInPieces(t *testing.T) {
	for _, row := range []struct {
		chunks, unit, want int
		pieces, size       int
	}{
		{4096, 8192, 128, 128, 8192},                    // 16 chunks, 8 pieces each
		{4096, 65536, 128, 128, 65536},                  // a chunk each
		{4096, 1, 128, 128, 4096},                       // never less than a page
		{4096, 65537, 64, 64, 65536 + 4096},             // two chunks each
		{4096, 3 * 65536, 128, 2048 / 8 / 3, 3 * 65536}, // cut by the session's share
		{64, 65536, 128, 4, 65536},                      // 32 in the reserve, an eighth of them
		{8, 65536, 128, 1, 65536},                       // one at least
		{8, 8192, 128, 8, 8192},
		{1, 65536, 128, 0, 65536}, // nothing to reserve
		{8, 5 * 65536, 128, 0, 5 * 65536},
	} {
		pool, err := arena.New(int64(row.chunks) * arena.ChunkSize)
		require.NoError(t, err)
		r := newReserve(pool, 1<<20)
		had := len(r.chunks)
		m := r.take(row.unit, row.want)
		assert.Len(t, m.free, row.pieces, "%+v", row)
		assert.Equal(t, row.size, m.unit, "%+v", row)
		seen := map[*byte]bool{}
		for _, p := range m.free {
			assert.Equal(t, m.unit, totalLen(p), "%+v", row)
			require.False(t, seen[&p[0][0]], "two pieces in one place")
			seen[&p[0][0]] = true
		}
		r.put(m)
		assert.Len(t, r.chunks, had)
		r.close()
		assert.Equal(t, pool.Chunks(), pool.Free())
		require.NoError(t, pool.Close())
	}
}

func TestManySessionsFindSomeReserve(t *testing.T) {
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	r := newReserve(pool, 1<<20)
	var all []*sessionMemory
	for range 16 {
		m := r.take(65536, 128)
		require.NotEmpty(t, m.free)
		all = append(all, m)
	}
	for _, m := range all {
		r.put(m)
	}
	r.close()
	require.NoError(t, pool.Close())
}

// TestAllSessionsFindSomeReserve: as many sessions as may be each get a piece, where the pool has one for each.
func TestAllSessionsFindSomeReserve(t *testing.T) {
	pool, err := arena.New(1024 * arena.ChunkSize)
	require.NoError(t, err)
	r := newReserve(pool, 1<<20)
	r.sessions = 256
	var all []*sessionMemory
	for i := range r.sessions {
		m := r.take(65536, 128)
		require.NotEmpty(t, m.free, "session %d", i)
		all = append(all, m)
	}
	r.put(all[7]) // another one has its place
	all[7] = r.take(65536, 128)
	require.NotEmpty(t, all[7].free)
	for _, m := range all {
		r.put(m)
	}
	require.Zero(t, r.taken)
	r.close()
	require.NoError(t, pool.Close())
}

func TestPieceSize(t *testing.T) {
	for _, row := range []struct {
		p    iscsi.Params
		want int // with one connection
	}{
		{iscsi.Params{InitialR2T: true, ImmediateData: true, FirstBurstLength: 65536, MaxRecvData: 8192}, 8192},
		{iscsi.Params{InitialR2T: true, ImmediateData: true, FirstBurstLength: 4096, MaxRecvData: 8192}, 4096},
		{iscsi.Params{InitialR2T: true, FirstBurstLength: 65536, MaxRecvData: 8192}, 0},
		{iscsi.Params{FirstBurstLength: 65536, MaxRecvData: 8192}, 65536},
		{iscsi.Params{ImmediateData: true, FirstBurstLength: 65536, MaxRecvData: 8192}, 65536},
	} {
		ses := session{params: row.p}
		assert.Equal(t, row.want, ses.pieceSize(), "%+v", row.p)
		ses.shared = true // each connection has its own MaxRecvData
		if row.want > 0 {
			row.want = int(row.p.FirstBurstLength)
		}
		assert.Equal(t, row.want, ses.pieceSize(), "shared: %+v", row.p)
	}
}

func TestBufferLists(t *testing.T) {
	whole := []byte("abcdefghij")
	lists := [][][]byte{{whole}, {whole[:3], whole[3:4], whole[4:]}, {whole[:5], nil, whole[5:]}}
	join := func(bufs [][]byte) (s string) {
		for _, b := range bufs {
			s += string(b)
		}
		return s
	}
	for _, l := range lists {
		for n := range len(whole) + 1 {
			assert.Equal(t, string(whole[:n]), join(appendPrefix(nil, l, n)))
			assert.Equal(t, string(whole[n:]), join(appendFrom(nil, l, n)))
		}
		assert.Equal(t, len(whole), totalLen(l))
	}
	room := make([]byte, 10)
	bufs := [][]byte{room[:4], room[4:5], room[5:]}
	copyTo(bufs, 2, []byte("xyz"))
	copyTo(bufs, 8, []byte("beyond"))
	copyTo(bufs, 20, []byte("far"))
	assert.Equal(t, "\x00\x00xyz\x00\x00\x00be", string(room))
}
