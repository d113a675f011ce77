package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const servedName = "iqn.2026-01.test:verified"

// serveStore serves a store over TCP and over iSER on our RoCE, and returns the URLs of both.
func serveStore(t *testing.T, store backstore.Store) (s *target.Server, urls map[string]string) {
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	s = target.New(target.Config{Pool: pool})
	device := scsi.NewDevice(scsi.DeviceConfig{Name: servedName})
	_, err = device.Add(0, store, scsi.LUConfig{ID: "verified"})
	require.NoError(t, err)
	_, err = s.AddTarget(target.TargetConfig{Name: servedName, Device: device, Negotiate: iscsi.DefaultConfig()})
	require.NoError(t, err)
	ours := rdmatest.Address(0)
	p := roce.New(roce.Options{Addr: ours})
	over := map[string]iscsi.Listener{}
	over["iscsi"], err = tcp.Listen("127.0.0.1:0")
	require.NoError(t, err)
	over["iser"], err = iser.Listen(p, netip.AddrPortFrom(ours, 3260), iser.TargetConfig{})
	require.NoError(t, err)
	urls = map[string]string{}
	for scheme, l := range over {
		require.NoError(t, s.Serve(l, target.PortalConfig{Tag: 1}))
		urls[scheme] = fmt.Sprintf("%s://%s/%s/0?rdma=roce", scheme, l.Addr(), servedName)
	}
	urls["iscsi"] = urls["iscsi"][:len(urls["iscsi"])-len("?rdma=roce")]
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		assert.NoError(t, s.Shutdown(ctx))
		assert.NoError(t, p.Close())
		assert.NoError(t, pool.Close())
		assert.NoError(t, store.Close())
	})
	return s, urls
}

// verifyServed runs a plan on a URL as the command does, by as many jobs.
func verifyServed(t *testing.T, url string, p verify.Plan, jobs int, reconnect time.Duration, tick func(int64)) (verify.Result, error) {
	a := &app{out: os.Stdout, errOut: os.Stderr, quiet: true, timeout: time.Minute}
	a.tune.immediateData = "yes"
	var disks []verify.Disk
	for range jobs {
		c, d, err := a.openVerify(t.Context(), url, reconnect, p.Overlap)
		require.NoError(t, err)
		defer c.Close()
		if len(disks) == 0 {
			require.NoError(t, p.Check(d.SizeBytes(), d.BlockSize()))
			require.NoError(t, a.prepareVerify(t.Context(), d, &p, false))
		}
		disks = append(disks, verifyDisk{d})
	}
	res, err := verify.New(disks, p, tick).Run(t.Context())
	if a.provider != nil {
		defer a.provider.Close()
	}
	return res, err
}

// What the faulty disk of TestEveryPlantedFaultIsFoundAndNamed is asked, in bytes and requests of one pass.
const (
	plantedSize     = 1 << 20
	plantedRequest  = 4 << 10
	plantedRequests = plantedSize / plantedRequest
)

// Two runs in the order of the disk, one request at a time; all goes well in the first, and much goes wrong in the second.
// The store's log is the truth: what the disk must have come to hold, and each read to return, follows from it. Every
// sector that must be wrong is found, with these bytes, and named for what befell it, and no other one is.
func TestEveryPlantedFaultIsFoundAndNamed(t *testing.T) {
	for _, scheme := range []string{"iscsi", "iser"} {
		for seed := range 2 {
			t.Run(fmt.Sprintf("%s seed %d", scheme, seed), func(t *testing.T) {
				ram, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(plantedSize)})
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, ram.Close()) })
				var rules strings.Builder
				for _, r := range []string{
					"bitflip write bits=3", "misplaced write", "torn write", "lost write", "bitflip read bits=3", "misplaced read", "stale read",
				} {
					rules.WriteString(fmt.Sprintf("%s skip=%d rate=1/20;", r, plantedRequests))
				}
				store, err := backstore.OpenOver("fault", backstore.Options{"store": "ram", "rules": rules.String(), "seed": fmt.Sprint(seed)}, ram)
				require.NoError(t, err)
				_, urls := serveStore(t, store)
				p := verify.Plan{
					Ranges: []verify.Range{{Start: 0, End: plantedSize}}, RequestBytes: plantedRequest, Sequential: true,
					Seed: 11, Runs: 2, Depth: 1, Keep: verify.MaxKeep,
				}
				res, err := verifyServed(t, urls[scheme], p, 1, 0, nil)
				require.NoError(t, err)
				log, forgotten := store.(*backstore.FaultStore).Faults()
				require.Zero(t, forgotten)
				checkPlanted(t, log, &res)
			})
		}
	}
}

// planted is what the disk holds, and held before the last write, by what the log of faults says.
type planted struct{ now, before []byte }

func newPlanted() *planted {
	d := &planted{make([]byte, plantedSize), make([]byte, plantedSize)}
	stamp.Fill(d.now, stamp.ID{Seed: 11, Generation: 1})
	return d
}

func (d *planted) put(p []byte, off int64) {
	first, last := off&^511, (off+int64(len(p))+511)&^511
	if len(p) > 0 {
		copy(d.before[first:last], d.now[first:last])
	}
	copy(d.now[off:], p)
}

// write is the second run's write of a request, with the fault that befell it, if one did.
func (d *planted) write(off int64, f *backstore.Fault) {
	p := make([]byte, plantedRequest)
	stamp.Fill(p, stamp.ID{Seed: 11, Sector: uint64(off / 512), Generation: 2})
	switch {
	case f == nil:
		d.put(p, off)
	case f.Kind == backstore.FaultBitFlip:
		flipPlanted(p, off, f)
		d.put(p, off)
	case f.Kind == backstore.FaultTorn:
		d.put(p[:f.Offset-off], off)
	case f.Kind == backstore.FaultMisplaced:
		d.put(p, f.Elsewhere)
	}
}

// read is what the read of a request returns.
func (d *planted) read(off int64, f *backstore.Fault) []byte {
	p := bytes.Clone(d.now[off : off+plantedRequest])
	switch {
	case f == nil:
	case f.Kind == backstore.FaultBitFlip:
		flipPlanted(p, off, f)
	case f.Kind == backstore.FaultMisplaced:
		copy(p, d.now[f.Elsewhere:])
	case f.Kind == backstore.FaultStale:
		copy(p, d.before[off:off+plantedRequest])
	}
	return p
}

func flipPlanted(p []byte, off int64, f *backstore.Fault) {
	for _, bit := range f.Bits {
		p[bit/8-off] ^= 1 << (bit % 8)
	}
}

func checkPlanted(t *testing.T, log []backstore.Fault, res *verify.Result) {
	at := map[string]map[int64]*backstore.Fault{"read": {}, "write": {}}
	kinds := map[string]int{}
	for i := range log {
		f := &log[i]
		require.Nil(t, at[f.Op][f.Offset/plantedRequest], "one fault befalls a request")
		at[f.Op][f.Offset/plantedRequest] = f
		kinds[string(f.Kind)+" "+f.Op]++
	}
	require.Len(t, kinds, 7, "a kind of fault was not planted: %v", kinds)
	found := map[uint64]*verify.Bad{}
	for i := range res.Bad {
		b := &res.Bad[i]
		require.Nil(t, found[b.Want.Sector], "a sector is read once")
		require.EqualValues(t, 2, b.Want.Generation)
		found[b.Want.Sector] = b
	}
	d, wrong, named := newPlanted(), 0, map[stamp.Kind]int{}
	for n := range int64(plantedRequests) {
		d.write(n*plantedRequest, at["write"][n])
	}
	for n := range int64(plantedRequests) {
		got := d.read(n*plantedRequest, at["read"][n])
		for s := uint64(n * plantedRequest / 512); len(got) > 0; got, s = got[512:], s+1 {
			want := make([]byte, 512)
			stamp.Fill(want, stamp.ID{Seed: 11, Sector: s, Generation: 2})
			if bytes.Equal(got[:512], want) {
				assert.Nil(t, found[s], "sector %d is right", s)
				continue
			}
			wrong++
			b := found[s]
			require.NotNil(t, b, "sector %d is wrong, and nobody has noticed", s)
			require.True(t, bytes.Equal(got[:512], b.Got), "sector %d", s)
			kind := kindOfPlanted(want, b.Got, s)
			if kind != "" {
				require.Equal(t, kind, b.Kind, "%s", b.Text)
			}
			named[kind]++
		}
	}
	assert.EqualValues(t, wrong, res.Wrong)
	assert.Less(t, named[""], wrong/10, "of what several faults befell nobody can say what it is")
	for _, k := range []stamp.Kind{stamp.BitFlip, stamp.Misplaced, stamp.Torn, stamp.Stale} {
		assert.NotZero(t, named[k], k)
	}
}

// kindOfPlanted says what is wrong with a sector by plain comparison with what it can be; empty: several faults befell it.
func kindOfPlanted(want, got []byte, sector uint64) stamp.Kind {
	of := func(sector, generation uint64) []byte {
		p := make([]byte, 512)
		stamp.Fill(p, stamp.ID{Seed: 11, Sector: sector, Generation: generation})
		return p
	}
	bits := 0
	for i := range want {
		for x := want[i] ^ got[i]; x != 0; x &= x - 1 {
			bits++
		}
	}
	old := of(sector, 1)
	switch {
	case bytes.Equal(got, old):
		return stamp.Stale
	case bits <= 8:
		return stamp.BitFlip
	}
	if s := binary.LittleEndian.Uint64(got[16:]); s != sector && (bytes.Equal(got, of(s, 1)) || bytes.Equal(got, of(s, 2))) {
		return stamp.Misplaced
	}
	for n := range 512 {
		if bytes.Equal(got[:n], want[:n]) && bytes.Equal(got[n:], old[n:]) {
			return stamp.Torn
		}
	}
	return ""
}

// The order of the requests is computed, and so is the disk: neither takes memory.
func TestVerifyOf100TiBTakesLittleMemory(t *testing.T) {
	const most = 128 << 20 // bytes; a bit for each request of the disk would be more
	store, err := backstore.Open("pattern", backstore.Options{"size": "100TiB", "seed": "11"})
	require.NoError(t, err)
	_, urls := serveStore(t, store)
	for scheme, url := range urls {
		p := verify.Plan{Ranges: []verify.Range{{Start: 0, End: 100 << 40}}, RequestBytes: 64 << 10, Seed: 11, Depth: 8, Time: time.Second}
		before := heldMemory()
		res, err := verifyServed(t, url, p, 2, 0, nil)
		require.NoError(t, err, scheme)
		assert.Zero(t, res.Wrong, res.Kinds)
		assert.NotZero(t, res.WrittenBytes)
		assert.GreaterOrEqual(t, res.WrittenBytes, res.ReadBytes)
		assert.Less(t, heldMemory()-before, int64(most), scheme)
	}
	wrong, _ := store.(*backstore.PatternStore).Wrong()
	assert.Zero(t, wrong)
}

// heldMemory is all that was ever asked of the system: it does not shrink.
func heldMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}

// Sessions are ended while a verification runs, again and again: nothing is wrong, whether writes may be sent again or
// have an unknown outcome.
func TestVerifyGoesOnWhenSessionsAreLost(t *testing.T) {
	ram, err := backstore.Open("ram", backstore.Options{"size": "2MiB"})
	require.NoError(t, err)
	s, urls := serveStore(t, ram)
	for scheme, url := range urls {
		for _, overlap := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s overlap %v", scheme, overlap), func(t *testing.T) {
				p := verify.Plan{
					Ranges: []verify.Range{{Start: 0, End: 2 << 20}}, Mixed: true, RequestBytes: 64 << 10, Seed: 11, Depth: 4,
					Runs: 1, Overlap: overlap, Zero: 10, Unmap: 10,
				}
				cuts, next := 0, int64(0)
				res, err := verifyServed(t, url, p, 2, time.Minute, func(done int64) {
					if done < next {
						return
					}
					next = done + 1<<20
					cuts += cutSessions(t, s)
				})
				require.NoError(t, err)
				assert.Zero(t, res.Wrong, res.Bad)
				assert.NotZero(t, cuts, "nothing was cut: the test shows nothing")
			})
		}
	}
}

// cutSessions ends all sessions, and says how many they were.
func cutSessions(t *testing.T, s *target.Server) int {
	var ids []uint16
	for _, info := range s.Sessions() {
		ids = append(ids, info.TSIH)
	}
	assert.NoError(t, s.CloseSessions(t.Context(), ids...))
	return len(ids)
}
