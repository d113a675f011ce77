package tcp

import (
	"io"
	"net"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A clientRig is a client with a raw target.
type clientRig struct {
	*peer
	*client
}

func attach(t *testing.T, p iscsi.Params) *clientRig {
	a, b := socketPair(t)
	r := &clientRig{&peer{t: t, nc: b, hd: p.HeaderDigest, dd: p.DataDigest}, newClient(a, p)}
	t.Cleanup(func() {
		_ = b.Close()
		_ = r.dm.Close()
	})
	return r
}

// begin sends a command and lets the peer see it.
func (r *clientRig) begin(req *request, in, out [][]byte) (cmd iscsi.SCSICommand, data []byte) {
	r.t.Helper()
	r.submit(req, 0, in, out)
	require.NoError(r.t, r.dm.Flush())
	data = r.recv(&cmd)
	return cmd, data
}

func dataIn(itt, sn, off uint32, final bool) *iscsi.DataIn {
	return &iscsi.DataIn{Final: final, ITT: itt, TTT: iscsi.ReservedTag, DataSN: sn, Offset: off, ExpCmdSN: 2, MaxCmdSN: 66}
}

func TestWriteWithAndWithoutUnsolicitedData(t *testing.T) {
	for _, c := range []struct {
		name                  string
		initialR2T, immediate bool
		first                 uint32
	}{
		{"write-all", false, true, 10000},
		{"write-immediate", true, true, 10000},
		{"write-unsolicited", false, false, 10000},
		{"write-solicited", true, false, 10000},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := attach(t, params(func(p *iscsi.Params) {
				p.InitialR2T, p.ImmediateData, p.FirstBurstLength, p.MaxSendData = c.initialR2T, c.immediate, c.first, 4096
				p.MaxBurstLength, p.MaxOutstandingR2T = 16384, 2
			}))
			data, got := make([]byte, 40001), make([]byte, 40001)
			stamp(data, 2)
			var req request
			cmd, b := r.begin(&req, nil, [][]byte{data[:7], data[7:20000], data[20000:]})
			n := uint32(copy(got, b))
			assert.EqualValues(t, len(b), cmd.DataLength)
			var out iscsi.DataOut
			for more := !cmd.Final; more; more = !out.Final {
				n += uint32(copy(got[n:], r.recv(&out)))
				assert.EqualValues(t, iscsi.ReservedTag, out.TTT)
			}
			assert.Equal(t, n, req.Unsolicited)
			// Two R2Ts at once, then the rest.
			ask := func(sn, off, length uint32) *iscsi.R2T {
				return &iscsi.R2T{LUN: cmd.LUN, ITT: cmd.ITT, TTT: 0xabc0 + sn, StatSN: 1, R2TSN: sn, Offset: off, Length: length}
			}
			r.send(ask(0, n, 10000), nil)
			r.send(ask(1, n+10000, 16000), nil)
			r.serveOut(got, 2)
			n += 26000
			r.send(ask(2, n, 40001-n), nil)
			r.serveOut(got, 1)
			r.send(&iscsi.SCSIResponse{ITT: cmd.ITT, StatSN: 1, ExpCmdSN: 2, MaxCmdSN: 66, ExpDataSN: 3}, nil)
			require.NoError(t, r.wait(&req))
			assert.Equal(t, data, got)
			golden(t, c.name, r.received)
		})
	}
}

// serveOut runs the client until the peer has received n sequences of Data-Out into got.
func (r *clientRig) serveOut(got []byte, n int) {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		defer r.dm.Wake()
		defer close(done)
		for range n {
			var out iscsi.DataOut
			for sn := uint32(0); !out.Final; sn++ {
				b := r.recv(&out)
				assert.Equal(r.t, sn, out.DataSN, "DataSN starts anew with each R2T")
				copy(got[out.Offset:], b)
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
			require.NoError(r.t, r.turn(time0, nil))
		}
	}
}

func TestReadWithStatusInDataIn(t *testing.T) {
	r := attach(t, params(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = true, true }))
	data, back := make([]byte, 10000), make([]byte, 10000)
	stamp(data, 3)
	var req request
	cmd, _ := r.begin(&req, [][]byte{back[:3], back[3:9000], back[9000:]}, nil)
	assert.True(t, cmd.Final)
	r.send(dataIn(cmd.ITT, 0, 0, false), data[:4001])
	r.send(dataIn(cmd.ITT, 1, 4001, true), data[4001:5000])
	last := dataIn(cmd.ITT, 2, 5000, true)
	last.HasStatus, last.StatSN, last.Underflow, last.Residual = true, 1, true, 1000
	r.send(last, data[5000:9000])
	require.NoError(t, r.wait(&req))
	assert.Equal(t, iscsi.SCSIResponse{
		Underflow: true, ITT: cmd.ITT, StatSN: 1, ExpCmdSN: 2, MaxCmdSN: 66, ExpDataSN: 3, Residual: 1000,
	}, req.status)
	assert.EqualValues(t, 9000, req.received)
	assert.Equal(t, data[:9000], back[:9000])
	assert.Equal(t, make([]byte, 1000), back[9000:])
}

func TestStatusInAnEmptyDataIn(t *testing.T) {
	r := attach(t, params())
	back := make([]byte, 512)
	var req request
	cmd, _ := r.begin(&req, [][]byte{back}, nil)
	r.send(dataIn(cmd.ITT, 0, 0, true), make([]byte, 512))
	last := dataIn(cmd.ITT, 1, 0, true) // DC-04: some targets leave the offset zero here
	last.HasStatus, last.StatSN = true, 1
	r.send(last, nil)
	require.NoError(t, r.wait(&req))
	assert.EqualValues(t, 512, req.received)
}

func TestMoreResponsesInARoundThanUsual(t *testing.T) {
	const n = 3 * synthSize
	r := attach(t, params())
	r.evs = make([]iscsi.Event, 2*n)
	reqs := make([]request, n)
	for i := range reqs {
		r.submit(&reqs[i], 0, [][]byte{make([]byte, 4)}, nil)
	}
	require.NoError(t, r.dm.Flush())
	var all []byte
	for i := range reqs {
		r.recv(&iscsi.SCSICommand{})
		p := dataIn(reqs[i].ITT, 0, 0, true)
		p.HasStatus, p.StatSN = true, iscsi.StatSN(i)
		all = append(all, r.wire(p, nil, []byte{1, 2, 3, byte(i)})...)
	}
	r.write(all)
	seen, evs := 0, make([]iscsi.Event, 4*n)
	for at := 0; seen < n; {
		k, err := r.dm.Wait(evs[at:], time0)
		require.NoError(t, err)
		for _, ev := range evs[at : at+k] {
			if ev.Kind == iscsi.EventPDU {
				seen++
			}
		}
		at += k
	}
	sn := iscsi.StatSN(0) // all views are good until Flush
	for _, ev := range evs {
		if ev.Kind == iscsi.EventPDU {
			var res iscsi.SCSIResponse
			require.NoError(t, res.Parse(ev.BHS))
			assert.Equal(t, sn, res.StatSN)
			sn++
		}
	}
}

func TestBadDataInAndR2TEndTheConnection(t *testing.T) {
	r2t := func(sn, off, length uint32) *iscsi.R2T {
		return &iscsi.R2T{ITT: 1, TTT: 7, R2TSN: sn, Offset: off, Length: length}
	}
	for _, c := range []struct {
		name, says string
		write      bool
		send       func(r *clientRig)
	}{
		{"unknown task", "task 0x63: no such task", false, func(r *clientRig) { r.send(dataIn(99, 0, 0, true), make([]byte, 4)) }},
		{"DataSN", "DataSN 1, expected 0", false, func(r *clientRig) { r.send(dataIn(1, 1, 0, true), make([]byte, 4)) }},
		{"gap", "offset 4, expected 0", false, func(r *clientRig) { r.send(dataIn(1, 0, 4, true), make([]byte, 4)) }},
		{"overlap", "offset 0, expected 4", false, func(r *clientRig) {
			r.send(dataIn(1, 0, 0, false), make([]byte, 4))
			r.send(dataIn(1, 1, 0, true), make([]byte, 4))
		}},
		{"beyond EDTL", "8196 bytes at 0, there is room for 8192", false, func(r *clientRig) {
			r.send(dataIn(1, 0, 0, true), make([]byte, 8196))
		}},
		{"beyond EDTL later", "4 bytes at 8192", false, func(r *clientRig) {
			r.send(dataIn(1, 0, 0, false), make([]byte, 8192))
			r.send(dataIn(1, 1, 8192, true), make([]byte, 4))
		}},
		{"Data-In for a write", "room for 0", true, func(r *clientRig) { r.send(dataIn(1, 0, 0, true), make([]byte, 4)) }},
		{"R2T for nobody", "no such task", true, func(r *clientRig) { r.send(&iscsi.R2T{ITT: 50, Length: 4}, nil) }},
		{"R2T for a read", "the command has 0", false, func(r *clientRig) { r.send(r2t(0, 0, 4), nil) }},
		{"R2TSN", "R2TSN 3, expected 0", true, func(r *clientRig) { r.send(r2t(3, 0, 4), nil) }},
		{"R2T of nothing", "length 0", true, func(r *clientRig) { r.send(r2t(0, 0, 0), nil) }},
		{"R2T too long", "length 4097, MaxBurstLength is 4096", true, func(r *clientRig) { r.send(r2t(0, 0, 4097), nil) }},
		{"R2T beyond EDTL", "bytes up to 8193", true, func(r *clientRig) { r.send(r2t(0, 4097, 4096), nil) }},
		{"R2T that wraps", "bytes up to 4294967312", true, func(r *clientRig) { r.send(r2t(0, 0xffffff10, 256), nil) }},
		{"R2T without TTT", "reserved TTT", true, func(r *clientRig) {
			p := r2t(0, 0, 4)
			p.TTT = iscsi.ReservedTag
			r.send(p, nil)
		}},
		{"too many R2Ts", "more than 1 at the same time", true, func(r *clientRig) {
			r.write(append(r.wire(r2t(0, 0, 4), nil, nil), r.wire(r2t(1, 0, 4), nil, nil)...))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := attach(t, params(func(p *iscsi.Params) { p.MaxBurstLength, p.InitialR2T, p.ImmediateData = 4096, true, false }))
			buf := make([]byte, 8192)
			var req request
			if c.write {
				r.begin(&req, nil, [][]byte{buf})
			} else {
				r.begin(&req, [][]byte{buf}, nil)
			}
			c.send(r)
			err := r.wait(&req)
			var pe *ProtocolError
			require.ErrorAs(t, err, &pe)
			assert.ErrorContains(t, err, c.says)
			assert.True(t, req.released, "also when the connection has died")
			assert.False(t, req.responded)
			r.closed()
		})
	}
}

func TestDeathReleasesEveryTask(t *testing.T) {
	r := attach(t, params())
	reqs := make([]request, 100)
	for i := range reqs {
		r.submit(&reqs[i], 0, nil, [][]byte{make([]byte, 100)})
	}
	require.NoError(t, r.dm.Flush())
	_, err := io.CopyN(io.Discard, r.nc, 100*(iscsi.BHSSize+100))
	require.NoError(t, err)
	require.NoError(t, r.nc.Close())
	byITT := map[uint32]*request{}
	for i := range reqs {
		byITT[reqs[i].ITT] = &reqs[i]
	}
	find := func(t *iscsi.Transfer) *request { return byITT[t.ITT] }
	for err == nil {
		err = r.turn(time0, find)
	}
	for r.live > 0 { // Flush fails from now on, Wait still delivers
		n, werr := r.dm.Wait(r.evs, time0)
		require.Equal(t, n == 0, werr != nil)
		require.NoError(t, werr)
		for _, ev := range r.evs[:n] {
			require.Equal(t, iscsi.EventReleased, ev.Kind)
			require.False(t, find(ev.Transfer).released, "once")
			find(ev.Transfer).released = true
			r.live--
		}
	}
	_, again := r.dm.Wait(r.evs, time0)
	require.ErrorIs(t, again, io.EOF)
	var late request
	r.submit(&late, 0, nil, [][]byte{make([]byte, 100)})
	n, err := r.dm.Wait(r.evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, &late.Transfer, r.evs[0].Transfer)
	require.NoError(t, r.dm.Close())
	require.NoError(t, r.dm.Close())
}

func TestWaitAfterCloseSaysClosed(t *testing.T) {
	r := attach(t, params())
	require.NoError(t, r.dm.Close())
	_, err := r.dm.Wait(r.evs, time0)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, r.dm.Flush(), net.ErrClosed)
	r.dm.Wake()
}

func TestForgetEndsATask(t *testing.T) {
	r := attach(t, params())
	var req request
	r.begin(&req, [][]byte{make([]byte, 8)}, nil)
	r.dm.Forget(&req.Transfer)
	r.dm.Forget(&req.Transfer)
	n, err := r.dm.Wait(r.evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, iscsi.EventReleased, r.evs[0].Kind)
	// A response that comes in spite of that is nobody's.
	r.send(&iscsi.SCSIResponse{ITT: req.ITT}, nil)
	n, err = r.dm.Wait(r.evs, time0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Nil(t, r.evs[0].Transfer)
	assert.Equal(t, iscsi.OpSCSIResponse, iscsi.OpcodeOf(r.evs[0].BHS))
}

func TestDetachedReadTouchesNothing(t *testing.T) {
	near, far := net.Pipe()
	p := params()
	c := newClient(near, p)
	defer c.dm.Close()
	r := &peer{t: t, nc: far}
	back := make([]byte, 20000)
	var req request
	c.submit(&req, 0, [][]byte{back}, nil)
	require.NoError(t, c.dm.Flush())
	r.recv(&iscsi.SCSICommand{})
	go func() {
		b := r.wire(dataIn(1, 0, 0, false), nil, make([]byte, 15000))
		stamp(b[iscsi.BHSSize:], 8)
		_, _ = far.Write(b[:5000])
		_, _ = far.Write(b[5000:])
		last := dataIn(1, 1, 15000, true)
		last.HasStatus = true
		b = r.wire(last, nil, make([]byte, 5000))
		stamp(b[iscsi.BHSSize:], 8)
		_, _ = far.Write(b)
	}()
	conn := c.dm.(*initiator)
	for conn.rx.state != rxDirect {
		conn.block(time0)
		require.Zero(t, conn.parse(c.evs))
	}
	c.dm.Detach(&req.Transfer)
	was := append([]byte(nil), back...)
	require.NoError(t, c.wait(&req))
	assert.EqualValues(t, 20000, req.received)
	assert.Equal(t, was, back)
}

// A write that waits for the peer to read is detached: what has begun goes on with the data as it was, from our
// own memory, and the caller may do with his what he likes.
func TestDetachedWriteLeavesTheCallersMemory(t *testing.T) {
	for _, kind := range []string{"pipe", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			near, far := net.Pipe()
			size := 20000
			if kind == "tcp" {
				near, far = socketPair(t)
				require.NoError(t, near.(*net.TCPConn).SetWriteBuffer(4096))
				size = 8 << 20
			}
			c := newClient(near, params(func(p *iscsi.Params) {
				p.FirstBurstLength, p.MaxBurstLength, p.DataDigest = 16<<20, 16<<20, true
			}))
			defer c.dm.Close()
			data := make([]byte, size)
			stamp(data, 4)
			want := append([]byte(nil), data...)
			reqs := make([]request, 2)
			for i := range reqs { // the second one's command is still in the queue
				c.submit(&reqs[i], 0, nil, [][]byte{data[:size/2], data[size/2:]})
			}
			require.NoError(t, c.dm.Flush())
			require.True(t, c.dm.(*initiator).tx.busy, "the socket takes less")
			for i := range reqs {
				c.dm.Detach(&reqs[i].Transfer)
			}
			clear(data)
			r := &peer{t: t, nc: far, dd: true}
			seen := make(chan int, 1)
			go func() {
				defer c.dm.Wake()
				n := 0
				for range 2 {
					var cmd iscsi.SCSICommand
					for cmd.ITT == 0 {
						bhs, b, err := r.next()
						if !assert.NoError(t, err) || iscsi.OpcodeOf(&bhs) == iscsi.OpSCSICommand {
							_ = cmd.Parse(&bhs)
							assert.Equal(t, want[:len(b)], b)
							n += len(b)
							break
						}
						var out iscsi.DataOut
						_ = out.Parse(&bhs)
						assert.Equal(t, want[out.Offset:][:len(b)], b)
						n += len(b)
					}
				}
				seen <- n
				for {
					if _, _, err := r.next(); err != nil {
						return
					}
				}
			}()
			for !c.dm.Idle() {
				_, err := c.dm.Wait(c.evs, time0)
				require.NoError(t, err)
			}
			assert.Positive(t, <-seen)
			for i := range reqs {
				assert.Nil(t, reqs[i].Out)
			}
			require.NoError(t, c.dm.Close())
		})
	}
}

// A target may end a write before it has got all that it has asked for.
func TestResponseBeforeAllDataHasLeft(t *testing.T) {
	near, far := net.Pipe()
	c := newClient(near, params(func(p *iscsi.Params) {
		p.InitialR2T, p.ImmediateData, p.MaxOutstandingR2T = true, false, 2
	}))
	defer c.dm.Close()
	r := &peer{t: t, nc: far}
	const size = 2 << 20
	var req request
	c.submit(&req, 0, nil, [][]byte{make([]byte, size)})
	require.NoError(t, c.dm.Flush())
	seen := make(chan uint32, 1)
	go func() {
		r.recv(&iscsi.SCSICommand{})
		r.send(&iscsi.R2T{ITT: 1, TTT: 1, Length: size / 2}, nil)
		r.send(&iscsi.R2T{ITT: 1, TTT: 2, R2TSN: 1, Offset: size / 2, Length: size / 2}, nil)
		var out iscsi.DataOut
		r.recv(&out)
		r.send(&iscsi.SCSIResponse{ITT: 1, Status: 2}, nil)
		end := out.DataLength
		for {
			bhs, data, err := r.next()
			if err != nil {
				break
			}
			_ = out.Parse(&bhs)
			end = max(end, out.Offset+uint32(len(data)))
		}
		seen <- end
	}()
	require.NoError(t, c.wait(&req))
	assert.EqualValues(t, 2, req.status.Status)
	require.True(t, c.dm.Idle(), "released when the last byte of the batch has left")
	require.NoError(t, c.dm.Close())
	assert.LessOrEqual(t, <-seen, uint32(maxBatch), "the rest is not sent any more")
}
