package tcp

import (
	"flag"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata")

// golden compares what a peer has received with testdata/name.txt.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o777))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// readAll takes Data-In until the status and returns the data.
func (r *diskRig) readAll() (data []byte, pdus []iscsi.DataIn) {
	r.t.Helper()
	for {
		var in iscsi.DataIn
		b := r.recv(&in)
		require.EqualValues(r.t, len(data), in.Offset)
		require.EqualValues(r.t, len(pdus), in.DataSN)
		data = append(data, b...)
		pdus = append(pdus, in)
		if in.HasStatus {
			return data, pdus
		}
	}
}

func TestReadTranscript(t *testing.T) {
	for _, c := range []struct {
		name         string
		burst, mrdsl uint32
		length, edtl uint32
	}{
		{"read-64k", 1 << 20, 8192, 65536, 65536},          // DC-04
		{"read-1block", 1 << 20, 8192, 512, 512},           // DC-04
		{"read-underflow", 1 << 20, 8192, 12000, 16384},    // DC-04
		{"read-burst-16k", 16384, 8192, 65536, 65536},      // WP-07
		{"read-burst-not-pdus", 20000, 8192, 50001, 50001}, // F where a burst ends in the middle of a PDU
		{"read-burst-below-pdu", 512, 8192, 1500, 1500},    // MaxBurstLength below MRDSL
		{"read-odd-mrdsl", 1 << 20, 1023, 3000, 3000},      // cut to a multiple of four
		{"read-nothing", 1 << 20, 8192, 0, 512},            // a plain SCSI Response
	} {
		t.Run(c.name, func(t *testing.T) {
			r := serve(t, params(func(p *iscsi.Params) { p.MaxBurstLength, p.MaxSendData = c.burst, c.mrdsl }),
				func(d *disk) { d.piece = 1000; stamp(d.mem, 1) })
			r.send(command(opRead, 7, 4096, c.length, c.edtl), nil)
			if c.length > 0 {
				data, pdus := r.readAll()
				require.Equal(t, r.disk.mem[4096:4096+c.length], data)
				burst := uint32(0)
				for i, in := range pdus {
					assert.LessOrEqual(t, in.DataLength, c.mrdsl)
					burst += in.DataLength
					assert.LessOrEqual(t, burst, c.burst)
					if in.Final {
						burst = 0
					}
					assert.Equal(t, i == len(pdus)-1, in.HasStatus)
				}
				assert.True(t, pdus[len(pdus)-1].Final)
			} else {
				r.recv(&iscsi.SCSIResponse{})
			}
			golden(t, c.name, r.received)
		})
	}
}

func TestStatusIsItsOwnPDUUnlessGood(t *testing.T) {
	r := serve(t, params(), func(d *disk) {
		d.seen = func(ev *iscsi.Event) bool {
			if ev.Kind != iscsi.EventPDU {
				return true
			}
			task := &diskTask{Transfer: iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 512}}
			bufs := [][]byte{d.mem[:256], d.mem[256:512]}
			d.dm.PutData(&task.Transfer, bufs[:1], 0)
			d.dm.PutData(&task.Transfer, bufs[1:], 256)
			res := iscsi.SCSIResponse{
				ITT: task.ITT, Status: 2, StatSN: 5, DataLength: 3, ExpCmdSN: 9, MaxCmdSN: 10,
			}
			res.Put(&d.bhs)
			d.dm.Respond(&task.Transfer, &d.bhs, []byte{0, 1, 0x70})
			return true
		}
	})
	r.send(command(opRead, 1, 0, 512, 512), nil)
	r.recv(&iscsi.DataIn{})
	r.recv(&iscsi.DataIn{})
	var res iscsi.SCSIResponse
	assert.Equal(t, []byte{0, 1, 0x70}, r.recv(&res))
	assert.EqualValues(t, 2, res.ExpDataSN, "only the datamover knows how many Data-In there were")
	golden(t, "read-check-condition", r.received)
}

func TestWriteTranscript(t *testing.T) {
	r := serve(t, params(func(p *iscsi.Params) {
		p.MaxBurstLength, p.MaxOutstandingR2T, p.FirstBurstLength = 16384, 2, 512
	}), func(d *disk) { d.piece = 5000 })
	data := make([]byte, 50000)
	stamp(data, 3)
	r.send(command(opWrite, 0x10, 512, 50000, 50000), data[:500])
	off, ttts := uint32(500), map[uint32]bool{}
	var open []iscsi.R2T
	for n := range 4 {
		for len(open) < min(2, 4-n) {
			var ask iscsi.R2T
			r.recv(&ask)
			open = append(open, ask)
			assert.False(t, ttts[ask.TTT], "each R2T has its own TTT")
			ttts[ask.TTT] = true
		}
		ask := open[0]
		open = open[1:]
		assert.Equal(t, off, ask.Offset)
		off += ask.Length
		r.send(dataOut(ask.ITT, ask.TTT, 0, ask.Offset, false), data[ask.Offset:][:300])
		r.send(dataOut(ask.ITT, ask.TTT, 1, ask.Offset+300, true), data[ask.Offset+300:ask.Offset+ask.Length])
	}
	var res iscsi.SCSIResponse
	r.recv(&res)
	assert.EqualValues(t, 4, res.ExpDataSN)
	assert.EqualValues(t, 50000, off)
	golden(t, "write-r2t", r.received)
	r.end()
	assert.Equal(t, data, r.disk.mem[512:50512])
}

// ask starts a write of length bytes without unsolicited data and returns the first R2T.
func (r *diskRig) ask(itt uint32, off uint64, length uint32) (a iscsi.R2T) {
	r.t.Helper()
	r.send(command(opWrite, itt, off, length, length), nil)
	r.recv(&a)
	require.Equal(r.t, itt, a.ITT)
	return a
}

// WP-04.
func TestOtherPDUsBetweenDataOut(t *testing.T) {
	r := serve(t, params(func(p *iscsi.Params) { p.MaxBurstLength = 65536 }), func(d *disk) { stamp(d.mem[:4096], 9) })
	data := make([]byte, 65536)
	stamp(data, 5)
	never := r.ask(1, 500000, 1000)
	one, two := r.ask(2, 131072, 65536), r.ask(3, 196608, 65536)
	assert.NotEqual(t, never.TTT, one.TTT)
	for i := range uint32(16) {
		part := data[i*4096 : (i+1)*4096]
		r.send(dataOut(2, one.TTT, i, i*4096, i == 15), part)
		r.send(&iscsi.NOPOut{Immediate: true, ITT: 100 + i, TTT: iscsi.ReservedTag}, []byte("ping"))
		assert.Equal(t, "ping", string(r.recvAny(t, iscsi.OpNOPIn)))
		r.send(command(opRead, 200+i, 0, 4096, 4096), nil)
		assert.Equal(t, r.disk.mem[:4096], r.recvAny(t, iscsi.OpDataIn))
		r.send(dataOut(3, two.TTT, i, i*4096, i == 15), part)
		r.send(command(opWrite, 300+i, 300000, 512, 512), data[:512])
		r.recvAny(t, iscsi.OpSCSIResponse)
	}
	require.ErrorIs(t, r.end(), errEnded)
	assert.Equal(t, data, r.disk.mem[131072:196608])
	assert.Equal(t, data, r.disk.mem[196608:262144])
}

// recvAny takes PDUs until one of opcode op and returns its data.
func (r *diskRig) recvAny(t *testing.T, op iscsi.Opcode) []byte {
	t.Helper()
	for {
		bhs, data, err := r.next()
		require.NoError(t, err)
		if iscsi.OpcodeOf(&bhs) == op {
			return data
		}
	}
}

// WP-05, WP-10 and their like: what a target must refuse, and leave the medium as it was.
func TestBadDataOutEndsTheConnection(t *testing.T) {
	for _, c := range []struct {
		name, says string
		send       func(r *diskRig, a iscsi.R2T)
	}{
		{"DataSN", "DataSN 27, expected 0", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 27, 0, true), make([]byte, 8192))
		}},
		{"DataSN goes on over R2Ts", "DataSN 1, expected 0", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, true), make([]byte, 8192))
			r.recv(&a)
			r.send(dataOut(a.ITT, a.TTT, 1, 8192, true), make([]byte, 8192))
		}},
		{"DataSN repeated", "DataSN 0, expected 1", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, false), make([]byte, 4096))
			r.send(dataOut(a.ITT, a.TTT, 0, 4096, true), make([]byte, 4096))
		}},
		{"unknown TTT", "unknown TTT 0x12345678", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, 0x12345678, 0, 0, true), make([]byte, 8192))
		}},
		{"TTT of the future", "unknown TTT", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT+5<<16, 0, 0, true), make([]byte, 8192))
		}},
		{"TTT that has been answered", "unknown TTT", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, true), make([]byte, 8192))
			r.send(dataOut(a.ITT, a.TTT, 1, 8192, true), make([]byte, 8192))
		}},
		{"another task's ITT", "belongs to task 0x1", func(r *diskRig, a iscsi.R2T) {
			b := r.ask(2, 65536, 16384)
			r.send(dataOut(b.ITT, a.TTT, 0, 0, true), make([]byte, 8192))
		}},
		{"offset too high", "offset 512, expected 0", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 512, true), make([]byte, 8192))
		}},
		{"offset repeated", "offset 0, expected 4096", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, false), make([]byte, 4096))
			r.send(dataOut(a.ITT, a.TTT, 1, 0, true), make([]byte, 4096))
		}},
		{"too long", "8196 bytes, but the R2T has 8192 left", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, true), make([]byte, 8196))
		}},
		{"F too early", "F=true with 4096 of 8192", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, true), make([]byte, 4096))
		}},
		{"F missing", "F=false with 8192 of 8192", func(r *diskRig, a iscsi.R2T) {
			r.send(dataOut(a.ITT, a.TTT, 0, 0, false), make([]byte, 8192))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := serve(t, params(func(p *iscsi.Params) {
				p.MaxBurstLength, p.InitialR2T, p.ImmediateData = 8192, true, false
			}), func(d *disk) {
				stamp(d.mem, 77)
			})
			c.send(r, r.ask(1, 0, 16384))
			r.closed()
			err := r.over()
			var pe *ProtocolError
			require.ErrorAs(t, err, &pe)
			assert.Equal(t, iscsi.OpDataOut, pe.PDU)
			assert.ErrorContains(t, err, c.says)
			want := make([]byte, len(r.disk.mem))
			stamp(want, 77)
			assert.Equal(t, want[16384:], r.disk.mem[16384:], "nothing beyond the task's buffers")
		})
	}
}

// WP-10: the task knows its unit.
func TestLUNOfDataOutIsNotTrusted(t *testing.T) {
	for _, lun := range []iscsi.LUN{0xffffffffffffffff, iscsi.LUNFromNumber(1)} {
		r := serve(t, params())
		a := r.ask(1, 0, 4096)
		p := dataOut(1, a.TTT, 0, 0, true)
		p.LUN = lun
		data := make([]byte, 4096)
		stamp(data, 4)
		r.send(p, data)
		r.recv(&iscsi.SCSIResponse{})
		r.end()
		assert.Equal(t, data, r.disk.mem[:4096])
	}
}

// WP-12.
func TestOddPieces(t *testing.T) {
	rnd := rand.New(rand.NewSource(12))
	splits := [][]int{{5792, 15880, 11536, 2848, 11536, 5744, 12200}}
	for range 100 {
		var s []int
		for left := 65536; left > 0; {
			n := min(left, 1+rnd.Intn(16384))
			s = append(s, n)
			left -= n
		}
		splits = append(splits, s)
	}
	r := serve(t, params(func(p *iscsi.Params) { p.DataDigest = true; p.InitialR2T = true }), func(d *disk) { d.piece = 4096 })
	for i, s := range splits {
		itt, at := uint32(i+1), uint64(i%8)*100000+512
		data := make([]byte, 65536)
		stamp(data, uint64(i))
		r.send(command(opWrite, itt, at, 65536, 65536), data[:s[0]])
		var a iscsi.R2T
		if s[0] < 65536 {
			r.recv(&a)
			require.EqualValues(t, s[0], a.Offset)
			require.EqualValues(t, 65536-s[0], a.Length)
		}
		off := uint32(s[0])
		for sn, n := range s[1:] {
			end := off + uint32(n)
			r.send(dataOut(itt, a.TTT, uint32(sn), off, end == 65536), data[off:end])
			off = end
		}
		r.recv(&iscsi.SCSIResponse{})
		r.send(command(opRead, itt+1000, at-512, 65536+1024, 65536+1024), nil)
		back, _ := r.readAll()
		require.Equal(t, data, back[512:512+65536])
		before, after := make([]byte, 512), make([]byte, 512)
		require.Equal(t, before, back[:512], "torn neighbour")
		require.Equal(t, after, back[65536+512:], "torn neighbour")
	}
}

func TestDataOutForAnAbortedTaskIsSwallowed(t *testing.T) {
	var aborted iscsi.Transfer
	released := make(chan *iscsi.Transfer, 4)
	r := serve(t, params(func(p *iscsi.Params) { p.MaxOutstandingR2T = 2; p.MaxBurstLength = 4096 }), func(d *disk) {
		d.seen = func(ev *iscsi.Event) bool {
			switch {
			case ev.Kind == iscsi.EventReleased:
				released <- ev.Transfer
				return ev.Transfer == &aborted
			case ev.Kind == iscsi.EventPDU && iscsi.OpcodeOf(ev.BHS) == iscsi.OpSCSICommand && iscsi.ITTOf(ev.BHS) == 1:
				aborted = iscsi.Transfer{ITT: 1, EDTL: 16384}
				d.dm.GetData(&aborted, [][]byte{d.mem[:16384]}, 0)
				return true
			case ev.Kind == iscsi.EventPDU && iscsi.OpcodeOf(ev.BHS) == iscsi.OpTMFRequest:
				d.dm.Abort(&aborted)
				res := iscsi.TMFResponse{ITT: iscsi.ITTOf(ev.BHS)}
				res.Put(&d.bhs)
				d.dm.Send(&d.bhs, nil)
				return true
			}
			return false
		}
	})
	junk := make([]byte, 4096)
	stamp(junk, 6)
	var a, b iscsi.R2T
	r.send(command(opWrite, 1, 0, 16384, 16384), nil)
	r.recv(&a)
	r.recv(&b)
	r.send(dataOut(1, b.TTT, 0, 4096, false), junk[:100])
	// Half of a PDU comes before the abort, half after.
	r.send(&iscsi.TMFRequest{Immediate: true, Function: iscsi.TMAbortTask, ITT: 2, RefITT: 1}, nil)
	r.recv(&iscsi.TMFResponse{})
	assert.Equal(t, &aborted, <-released)
	r.send(dataOut(1, a.TTT, 0, 0, true), junk)
	r.send(dataOut(1, b.TTT, 1, 4196, true), junk[:3996])
	r.send(command(opRead, 3, 0, 8192, 8192), nil)
	back, _ := r.readAll()
	want := make([]byte, 8192)
	copy(want[4096:], junk[:100])
	assert.Equal(t, want, back, "nothing was placed after the abort")
	require.ErrorIs(t, r.end(), errEnded)
}

// collect waits for n events without Flush, so that their views stay.
func collect(t *testing.T, dm iscsi.Datamover, n int) []iscsi.Event {
	t.Helper()
	evs := make([]iscsi.Event, n)
	for got := 0; got < n; {
		k, err := dm.Wait(evs[got:], time0)
		require.NoError(t, err)
		got += k
	}
	return evs
}

func TestAbortInTheMiddleOfADataOut(t *testing.T) {
	near, far := net.Pipe()
	d := newDisk(near, params(), 8192)
	defer d.dm.Close()
	r := &peer{t: t, nc: far}
	go func() {
		b := r.wire(dataOut(1, 1<<16, 0, 0, true), nil, make([]byte, 8192))
		stamp(b[iscsi.BHSSize:], 8)
		_, _ = far.Write(b[:6000])
		_, _ = far.Write(b[6000:])
		_, _ = far.Write(r.wire(&iscsi.NOPOut{ITT: 5, TTT: iscsi.ReservedTag}, nil, nil))
	}()
	go func() { _, _, _ = r.next() }()
	tr := iscsi.Transfer{ITT: 1, EDTL: 8192}
	d.dm.GetData(&tr, [][]byte{d.mem}, 0)
	require.NoError(t, d.dm.Flush())
	evs := make([]iscsi.Event, 4)
	conn := d.dm.(*target)
	for conn.rx.state != rxDirect {
		conn.block(time0)
		require.Zero(t, conn.parse(evs))
	}
	d.dm.Abort(&tr)
	evs = collect(t, d.dm, 2)
	if evs[0].Kind == iscsi.EventPDU { // the R2T may leave after the ping has come
		evs[0], evs[1] = evs[1], evs[0]
	}
	require.Equal(t, iscsi.EventReleased, evs[0].Kind)
	assert.Equal(t, &tr, evs[0].Transfer)
	assert.Equal(t, iscsi.TransferState{}, tr.DM)
	assert.Equal(t, iscsi.OpNOPOut, iscsi.OpcodeOf(evs[1].BHS))
	assert.Equal(t, make([]byte, 8192-6000), d.mem[6000:])
}

func TestAbortDropsWhatHasNotBegun(t *testing.T) {
	near, far := net.Pipe()
	d := newDisk(near, params(func(p *iscsi.Params) { p.MaxSendData = 4096 }), 4<<20)
	defer d.dm.Close()
	long, short := iscsi.Transfer{ITT: 1, EDTL: 4 << 20}, iscsi.Transfer{ITT: 2, EDTL: 4096}
	d.dm.PutData(&long, [][]byte{d.mem}, 0)
	require.NoError(t, d.dm.Flush()) // the first batch waits for the peer
	d.dm.PutData(&short, [][]byte{d.mem[:4096]}, 0)
	require.NoError(t, d.dm.Flush())
	d.dm.Abort(&short)
	evs := collect(t, d.dm, 1)
	assert.Equal(t, &short, evs[0].Transfer, "nothing of it has begun: released at once")
	d.dm.Abort(&long)
	read := make(chan int, 1)
	r := &peer{t: t, nc: far}
	go func() {
		sum := 0
		for {
			_, data, err := r.next()
			if err != nil {
				read <- sum
				return
			}
			sum += len(data)
		}
	}()
	evs = collect(t, d.dm, 1)
	assert.Equal(t, &long, evs[0].Transfer, "released when the batch has left")
	assert.True(t, d.dm.Idle())
	require.NoError(t, d.dm.Close())
	assert.LessOrEqual(t, <-read, maxBatch+4096)
}

// A store in memory may change under a read. What left with a digest must be what was digested.
func TestMemoryThatChangesUnderADigest(t *testing.T) {
	near, far := net.Pipe()
	d := newDisk(near, params(func(p *iscsi.Params) { p.DataDigest = true }), 8192)
	defer d.dm.Close()
	tr := iscsi.Transfer{ITT: 1, EDTL: 8192}
	d.dm.PutData(&tr, [][]byte{d.mem}, 0)
	require.NoError(t, d.dm.Flush()) // the batch waits for the peer to read
	r := &peer{t: t, nc: far, dd: true}
	stamp(d.mem, 1)
	assert.Equal(t, make([]byte, 8192), r.recv(&iscsi.DataIn{}))
}
