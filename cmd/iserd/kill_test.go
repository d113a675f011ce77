package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// How often TestKill kills, and what its chances come from:
//
//	go test ./cmd/iserd -run TestKill -kill.rounds 1000 -kill.seed 1
var (
	killRounds = flag.Int("kill.rounds", 50, "kill -9 iserd this often")
	killSeed   = flag.Uint64("kill.seed", 0, "seed of TestKill; 0 takes one from the clock")
)

// TestKill kills iserd in the middle of writes, over and over, and holds it to what it had promised:
//
//   - A block holds what was last acknowledged with FUA, or before an acknowledged SYNCHRONIZE CACHE, or
//     something written to it later, acknowledged or not. Nothing older, nothing else, no mixture.
//   - A registration and a reservation made with APTPL, and acknowledged, are there (case PR-03).
//
// A kill loses what is in the process and keeps the page cache, so that this is about what iserd answers
// too early. That Flush and FUA reach the disk is shown beneath, in package backstore, by watching what is
// asked of the kernel (TestPowerCut).
func TestKill(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with -kill.rounds %d -kill.seed %d", *killRounds, seed)
		}
	})
	stores := []string{"", ", sync: fua", ", sync: dsync", ", thin: no", ", direct: yes"}
	worlds := make([]*killWorld, len(stores))
	var acknowledged uint64
	for round := range *killRounds {
		i := round % len(stores)
		if worlds[i] == nil {
			worlds[i] = newKillWorld(t, stores[i])
		}
		acknowledged += worlds[i].round(t, rnd)
	}
	t.Logf("%d commands acknowledged in %d rounds", acknowledged, *killRounds)
}

const (
	killWorkers = 6
	killBlocks  = 48 // of each worker
	killAcks    = 250
	killTarget  = "iqn.2026-01.example:kill"
)

// A killWorld is one disk and what must be on it, from round to round.
type killWorld struct {
	config string
	thick  bool
	cells  []killCell // by LBA
	keys   killKeys
	newest atomic.Uint64 // generation
}

// A killCell is what a block may hold: the generation that is durable, or a later one.
type killCell struct {
	durable uint64
	later   []uint64
}

// killKeys are what a reservation may be: the state acknowledged, or the one asked for.
type killKeys struct{ acknowledged, asked killReservation }

type killReservation struct {
	key      uint64 // 0: not registered
	reserved bool
}

func newKillWorld(t *testing.T, options string) *killWorld {
	dir := t.TempDir()
	w := &killWorld{config: filepath.Join(dir, "iserd.yaml"), thick: strings.Contains(options, "thin: no"), cells: make([]killCell, killWorkers*killBlocks)}
	text := fmt.Sprintf(`version: 1
state_dir: %s/state
portals: [{listen: "127.0.0.1:0", provider: tcp}]
backstores: {disk: {type: file, path: %s/disk.img, size: 1MiB%s}}
targets: {"%s": {luns: {0: disk}}}
`, dir, dir, options, killTarget)
	require.NoError(t, os.WriteFile(w.config, []byte(text), 0o600))
	return w
}

// round starts a daemon, checks what the one before has left, and kills it in the middle of work. It
// returns how many commands were acknowledged.
func (w *killWorld) round(t *testing.T, rnd *rand.Rand) uint64 {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d := startVictim(t, w.config)
	defer d.kill(t)
	s, err := initiator.Open(ctx, &tcp.Dialer{}, d.addr, killTarget, initiator.Options{
		InitiatorName: "iqn.2026-01.example:killer", ISID: iscsi.ISID{0x80, 1, 2, 3, 4, 5},
	})
	require.NoError(t, err)
	disk, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	w.checkBlocks(t, ctx, disk)
	w.checkReservation(t, ctx, s)

	var acks atomic.Uint64
	enough := 1 + rnd.Uint64N(killAcks)
	acked := func() {
		if acks.Add(1) == enough {
			assert.NoError(t, d.process.Kill())
		}
	}
	var wg sync.WaitGroup
	for i := range killWorkers {
		chance := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		wg.Go(func() { w.work(t, ctx, s, i, chance, acked) })
	}
	chance := rand.New(rand.NewPCG(rnd.Uint64(), 2))
	wg.Go(func() { w.reserve(t, ctx, s, chance, acked) })
	wg.Wait()
	_ = s.Close() // it is over
	return acks.Load()
}

// A victim is a running iserd.
type victim struct {
	process *os.Process
	addr    string
	ended   func() error
	output  *bufio.Scanner
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+), tcp`)

func startVictim(t *testing.T, config string) *victim {
	cmd := exec.Command("iserd", "--config", config, "--admin", "off") // of TestMain
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	d := &victim{process: cmd.Process, ended: cmd.Wait, output: bufio.NewScanner(out)}
	var lines []string
	for d.output.Scan() {
		lines = append(lines, d.output.Text())
		if m := listening.FindStringSubmatch(d.output.Text()); m != nil {
			d.addr = m[1]
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
			return d
		}
	}
	d.kill(t)
	require.FailNow(t, "iserd does not listen", "%q", lines)
	return nil
}

func (d *victim) kill(t *testing.T) {
	if err := d.process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		assert.NoError(t, err)
	}
	var exit *exec.ExitError
	assert.ErrorAs(t, d.ended(), &exit, "iserd was killed")
}

// stamp fills p with blocks from lba on of a generation; generation 0 is zeros, as in a new disk.
func stamp(p []byte, lba int, generation uint64) {
	for ; len(p) > 0; p = p[16:] {
		binary.BigEndian.PutUint64(p, uint64(lba)*min(generation, 1))
		binary.BigEndian.PutUint64(p[8:], generation)
		if len(p)%512 == 16 {
			lba++
		}
	}
}

// checkBlocks reads everything, and makes what it has found durable.
func (w *killWorld) checkBlocks(t *testing.T, ctx context.Context, disk *initiator.Disk) {
	p := make([]byte, len(w.cells)*512)
	require.NoError(t, disk.ReadAt(ctx, p, 0))
	want := make([]byte, 512)
	for lba := range w.cells {
		c, got := &w.cells[lba], p[lba*512:][:512]
		generation := binary.BigEndian.Uint64(got[8:])
		stamp(want, lba, generation)
		require.Equal(t, want, got, "block %d is torn, or another's", lba)
		require.True(t, generation == c.durable || slices.Contains(c.later, generation),
			"block %d has generation %d; it was promised %d or one of %d", lba, generation, c.durable, c.later)
		*c = killCell{durable: generation}
	}
	require.NoError(t, disk.Flush(ctx))
}

// work writes to a worker's own blocks, one command at a time, until the daemon is gone.
func (w *killWorld) work(t *testing.T, ctx context.Context, s *initiator.Session, worker int, rnd *rand.Rand, acked func()) {
	own := w.cells[worker*killBlocks:][:killBlocks]
	for {
		at := rnd.IntN(killBlocks)
		n := 1 + rnd.IntN(killBlocks-at)
		kind := rnd.IntN(8)
		lba := worker*killBlocks + at
		generation, cells := w.newest.Add(1), own[at:at+n]
		command := writeCommand(lba, n, generation, kind < 3)
		switch kind {
		case 6:
			if command, generation = unmapCommand(lba, n), 0; w.thick {
				command = zeroCommand(lba, n)
			}
		case 7:
			command = initiator.Command{CDB: make([]byte, 10)}
			command.CDB[0] = 0x35 // SYNCHRONIZE CACHE(10)
			cells = own
		}
		for i := range cells {
			if kind != 7 {
				cells[i].later = append(cells[i].later, generation)
			}
		}
		if !killDo(t, ctx, s, command) {
			return
		}
		for i := range cells {
			if later := cells[i].later; len(later) > 0 && (kind < 3 || kind == 7) {
				cells[i] = killCell{durable: later[len(later)-1]}
			}
		}
		acked()
	}
}

func writeCommand(lba, blocks int, generation uint64, fua bool) initiator.Command {
	c := initiator.Command{CDB: make([]byte, 10), Out: make([]byte, blocks*512)}
	c.CDB[0] = 0x2a // WRITE(10)
	if fua {
		c.CDB[1] = 0x08
	}
	binary.BigEndian.PutUint32(c.CDB[2:], uint32(lba))
	binary.BigEndian.PutUint16(c.CDB[7:], uint16(blocks))
	stamp(c.Out, lba, generation)
	return c
}

func unmapCommand(lba, blocks int) initiator.Command {
	c := initiator.Command{CDB: make([]byte, 10), Out: make([]byte, 24)}
	c.CDB[0], c.CDB[8] = 0x42, 24 // UNMAP (SBC-3, 5.28)
	c.Out[1], c.Out[3] = 22, 16
	binary.BigEndian.PutUint64(c.Out[8:], uint64(lba))
	binary.BigEndian.PutUint32(c.Out[16:], uint32(blocks))
	return c
}

// zeroCommand is for a disk that keeps its space.
func zeroCommand(lba, blocks int) initiator.Command {
	c := initiator.Command{CDB: make([]byte, 16)}
	c.CDB[0], c.CDB[1] = 0x93, 0x01 // WRITE SAME(16), NDOB
	binary.BigEndian.PutUint64(c.CDB[2:], uint64(lba))
	binary.BigEndian.PutUint32(c.CDB[10:], uint32(blocks))
	return c
}

// killDo runs a command, and reports whether it has been acknowledged. It may fail only with the session.
func killDo(t *testing.T, ctx context.Context, s *initiator.Session, c initiator.Command) bool {
	r, err := s.Do(ctx, c)
	if err != nil {
		return false
	}
	return assert.NoError(t, r.Err(), "% x", c.CDB)
}

// Service actions and fields of PERSISTENT RESERVE OUT (SPC-4, 6.16).
const (
	killRegister   = 0x06 // REGISTER AND IGNORE EXISTING KEY
	killReserve    = 0x01
	killRelease    = 0x02
	killType       = 0x05 // WRITE EXCLUSIVE - REGISTRANTS ONLY
	killAPTPL      = 0x01
	killReadKeys   = 0x00
	killReadHolder = 0x01
)

func reserveCommand(action byte, key, newKey uint64) initiator.Command {
	c := initiator.Command{CDB: make([]byte, 10), Out: make([]byte, 24)}
	c.CDB[0], c.CDB[1], c.CDB[8] = 0x5f, action, 24
	if action != killRegister {
		c.CDB[2] = killType
	}
	binary.BigEndian.PutUint64(c.Out, key)
	binary.BigEndian.PutUint64(c.Out[8:], newKey)
	c.Out[20] = killAPTPL
	return c
}

// reserve changes its key, reserves and releases, until the daemon is gone.
func (w *killWorld) reserve(t *testing.T, ctx context.Context, s *initiator.Session, rnd *rand.Rand, acked func()) {
	for {
		r := w.keys.acknowledged
		var c initiator.Command
		switch kind := rnd.IntN(4); {
		case r.key == 0 || kind < 2:
			r.key = 1 + rnd.Uint64()>>1
			c = reserveCommand(killRegister, 0, r.key)
		case r.reserved:
			r.reserved = false
			c = reserveCommand(killRelease, r.key, 0)
		default:
			r.reserved = true
			c = reserveCommand(killReserve, r.key, 0)
		}
		w.keys.asked = r
		if !killDo(t, ctx, s, c) {
			return
		}
		w.keys.acknowledged = r
		acked()
	}
}

// checkReservation asks for keys and the holder.
func (w *killWorld) checkReservation(t *testing.T, ctx context.Context, s *initiator.Session) {
	ask := func(action byte) []byte {
		c := initiator.Command{CDB: make([]byte, 10), In: make([]byte, 64)}
		c.CDB[0], c.CDB[1], c.CDB[8] = 0x5e, action, 64
		r, err := s.Do(ctx, c)
		require.NoError(t, err)
		require.NoError(t, r.Err())
		return c.In[8:r.Received]
	}
	var got killReservation
	if keys := ask(killReadKeys); len(keys) > 0 {
		require.Len(t, keys, 8, "there is one initiator port")
		got.key = binary.BigEndian.Uint64(keys)
	}
	if holder := ask(killReadHolder); len(holder) > 0 {
		require.Equal(t, got.key, binary.BigEndian.Uint64(holder))
		require.EqualValues(t, killType, holder[13])
		got.reserved = true
	}
	require.Contains(t, []killReservation{w.keys.acknowledged, w.keys.asked}, got)
	w.keys.acknowledged = got
}
