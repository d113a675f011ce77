package target

import (
	"net"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// A loopDM runs one command again and again through a connection's loop, on the loop's own goroutine: what
// is measured is the engine.
type loopDM struct {
	bhs   [iscsi.BHSSize]byte
	data  []byte
	left  int
	depth int
	sn    iscsi.CmdSN
	itt   uint32
	rel   []*iscsi.Transfer
	bad   int
	in    *iscsi.Event
}

func (d *loopDM) Traits() iscsi.Traits { return tcpTraits }
func (d *loopDM) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (d *loopDM) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (d *loopDM) Wait(evs []iscsi.Event, _ time.Time) (int, error) {
	if d.in != nil {
		evs[0], d.in = *d.in, nil
		return 1, nil
	}
	n := 0
	for ; n < len(evs)/2 && len(d.rel) > 0; n++ {
		t := d.rel[len(d.rel)-1]
		d.rel = d.rel[:len(d.rel)-1]
		evs[n] = iscsi.Event{Kind: iscsi.EventReleased, Transfer: t}
	}
	for range min(d.depth, d.left, len(evs)-n) {
		d.left--
		d.sn++
		d.itt++
		// All of a batch share a header: the loop reads it before the next is made, so one a round.
		putU32(d.bhs[16:], d.itt&0xff|0x100)
		putU32(d.bhs[24:], uint32(d.sn))
		evs[n] = iscsi.Event{Kind: iscsi.EventPDU, BHS: &d.bhs, Data: d.data}
		return n + 1, nil
	}
	if n == 0 {
		return 0, net.ErrClosed
	}
	return n, nil
}

func putU32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}

func (d *loopDM) Send(*[iscsi.BHSSize]byte, []byte)               {}
func (d *loopDM) Enable(*iscsi.Params, *iscsi.Sequence) error     { return nil }
func (d *loopDM) Flush() error                                    { return nil }
func (d *loopDM) Idle() bool                                      { return true }
func (d *loopDM) Wake()                                           {}
func (d *loopDM) Close() error                                    { return nil }
func (d *loopDM) CanPut(*iscsi.Transfer) bool                     { return true }
func (d *loopDM) CanGet(*iscsi.Transfer) bool                     { return true }
func (d *loopDM) PutData(*iscsi.Transfer, [][]byte, uint32)       {}
func (d *loopDM) GetData(t *iscsi.Transfer, _ [][]byte, _ uint32) {}
func (d *loopDM) Abort(*iscsi.Transfer)                           {}
func (d *loopDM) Respond(t *iscsi.Transfer, b *[iscsi.BHSSize]byte, _ []byte) {
	if b[3] != 0 {
		d.bad++
	}
	d.rel = append(d.rel, t)
}

// loop logs in on a loopDM and lets it run n commands.
func (b *bench) loop(cmd iscsi.SCSICommand, cdb, data []byte, n int) *loopDM {
	d := &loopDM{depth: 1, rel: make([]*iscsi.Transfer, 0, 256)}
	var login [iscsi.BHSSize]byte
	r := wholeLogin
	r.Put(&login)
	d.in = &iscsi.Event{Kind: iscsi.EventPDU, BHS: &login, Data: text(loginLines(tcpTraits)...)}
	d.sn = ^iscsi.CmdSN(0)
	copy(cmd.CDB[:], cdb)
	cmd.Final = true
	cmd.Put(&d.bhs)
	iscsi.SetDataLength(&d.bhs, uint32(len(data)))
	d.data, d.left = data, n
	c := newConn(b.s, &portal{s: b.s, listener: newFakeListener("tcp", "192.0.2.1:3260"), config: PortalConfig{Tag: 1}}, d)
	if !b.s.admit(c) {
		b.t.Fatal("not admitted")
	}
	c.run()
	return d
}

func benchmark4K(b *testing.B, cmd iscsi.SCSICommand, cdb, data []byte) {
	bench := newBench(b, benchConfig{chunks: 1024})
	bench.loop(cmd, cdb, data, 1000)
	b.SetBytes(4096)
	b.ReportAllocs()
	b.ResetTimer()
	d := bench.loop(cmd, cdb, data, b.N+1)
	if d.bad != 1 {
		b.Fatalf("%d commands failed, want the one that takes the unit attention", d.bad)
	}
}

func BenchmarkRead4K(b *testing.B) {
	benchmark4K(b, iscsi.SCSICommand{Read: true, EDTL: 4096}, read10(8, 8), nil)
}

func BenchmarkWrite4K(b *testing.B) {
	benchmark4K(b, iscsi.SCSICommand{Write: true, EDTL: 4096}, write10(8, 8), make([]byte, 4096))
}

// TestWarmCommandsDoNotAllocate is what the benchmarks show, as a test: a thousand more commands cost no
// more allocations than the session itself.
func TestWarmCommandsDoNotAllocate(t *testing.T) {
	b := newBench(t, benchConfig{chunks: 1024})
	for name, run := range map[string]func(n int){
		"read": func(n int) { b.loop(iscsi.SCSICommand{Read: true, EDTL: 4096}, read10(8, 8), nil, n) },
		"write": func(n int) {
			b.loop(iscsi.SCSICommand{Write: true, EDTL: 4096}, write10(8, 8), make([]byte, 4096), n)
		},
	} {
		few := testing.AllocsPerRun(2, func() { run(100) })
		many := testing.AllocsPerRun(2, func() { run(1100) })
		if many-few > 50 { // 1000 commands
			t.Errorf("%s: %.0f allocations with 100 commands, %.0f with 1100", name, few, many)
		}
	}
}
