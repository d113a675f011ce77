package initiator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type wirePDU interface{ Put(*[iscsi.BHSSize]byte) }

// A villain is a target by hand on a TCP connection. What it cannot do any more, since the initiator has hung up, it
// leaves.
type villain struct {
	c    net.Conn
	stat iscsi.StatSN
}

func (v *villain) recv() (bhs [iscsi.BHSSize]byte, data []byte, err error) {
	if _, err = io.ReadFull(v.c, bhs[:]); err != nil {
		return bhs, nil, err
	}
	n := int(bhs[5])<<16 | int(bhs[6])<<8 | int(bhs[7])
	data = make([]byte, int(bhs[4])*4+(n+3)/4*4)
	_, err = io.ReadFull(v.c, data)
	return bhs, data[:int(bhs[4])*4+n], err
}

// wire is a PDU whose data segment says that it has n bytes.
func wire(p wirePDU, data []byte, n int) []byte {
	var bhs [iscsi.BHSSize]byte
	p.Put(&bhs)
	iscsi.SetDataLength(&bhs, uint32(n))
	return append(append(bhs[:], data...), make([]byte, -len(data)&3)...)
}

func (v *villain) send(p wirePDU, data []byte) { _, _ = v.c.Write(wire(p, data, len(data))) }

func (v *villain) next() iscsi.StatSN { v.stat++; return v.stat - 1 }

// end says that no more will come.
func (v *villain) end() {
	if c, ok := v.c.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// login grants whatever is asked for, up to full-feature phase.
func (v *villain) login() error {
	for {
		bhs, data, err := v.recv()
		if err != nil {
			return err
		}
		var req iscsi.LoginRequest
		if err := req.Parse(&bhs); err != nil {
			return err
		}
		kvs, err := iscsi.ParseText(data)
		if err != nil {
			return err
		}
		traits := iscsi.Traits{Name: "tcp", MaxLoginData: 8192, MaxRecvData: 65536}
		answers, err := iscsi.NewNegotiation(iscsi.Target, traits, iscsi.DefaultConfig(), false).Receive(kvs)
		if err != nil {
			return err
		}
		v.send(&iscsi.LoginResponse{
			Transit: req.Transit, Current: req.Current, Next: req.Next, ISID: req.ISID, TSIH: 1, ITT: req.ITT,
			StatSN: v.next(), ExpCmdSN: 1, MaxCmdSN: 64,
		}, iscsi.AppendText(nil, answers...))
		if req.Transit && req.Next == iscsi.StageFullFeature {
			return nil
		}
	}
}

// haunted listens, and plays the villain on each connection. The returned function waits for all of them.
func haunted(t testing.TB, play func(v *villain)) (address string, wait func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			v := &villain{c: c, stat: 100}
			play(v)
			v.partWith()
		}
	}()
	return l.Addr().String(), func() {
		_ = l.Close()
		<-done
	}
}

// partWith waits until the initiator hangs up, and hangs up when it logs out.
func (v *villain) partWith() {
	for {
		bhs, _, err := v.recv()
		if err != nil || iscsi.OpcodeOf(&bhs) == iscsi.OpLogoutReq {
			_ = v.c.Close()
			return
		}
	}
}

// hostile are what a target may do to the command that it was sent, and what the caller is told of it.
var hostile = map[string]struct {
	write bool
	does  func(v *villain, itt uint32)
	says  string
}{
	"Data-In beyond the buffer": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.DataIn{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 0}, make([]byte, 8196))
	}, "there is room for"},
	"Data-In at a far offset": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.DataIn{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 0xfffffffc}, make([]byte, 8))
	}, "offset"},
	"Data-In for another task": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.DataIn{Final: true, ITT: itt + 1, TTT: iscsi.ReservedTag}, make([]byte, 8))
	}, "no such task"},
	"Data-In for a write": {true, func(v *villain, itt uint32) {
		v.send(&iscsi.DataIn{Final: true, ITT: itt, TTT: iscsi.ReservedTag}, make([]byte, 8))
	}, "room for 0"},
	"R2T beyond the buffer": {true, func(v *villain, itt uint32) {
		v.send(&iscsi.R2T{ITT: itt, TTT: 1, Offset: 4096, Length: 8192}, nil)
	}, "the task has"},
	"R2T that wraps": {true, func(v *villain, itt uint32) {
		v.send(&iscsi.R2T{ITT: itt, TTT: 1, Offset: 0xfffffff0, Length: 64}, nil)
	}, "the task has"},
	"R2T for a read": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.R2T{ITT: itt, TTT: 1, Length: 512}, nil)
	}, "the command has 0"},
	"response to nobody": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.SCSIResponse{ITT: itt + 0x1000, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
	}, "unknown ITT"},
	"sense length that lies": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.SCSIResponse{Status: 2, ITT: itt, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, []byte{0xff, 0xff, 0x70, 0})
	}, "sense data of 65535 bytes"},
	"success without data": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.SCSIResponse{ITT: itt, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
	}, "of read data came"},
	"a residual of more than all": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.SCSIResponse{Underflow: true, Residual: 1 << 31, ITT: itt, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
	}, "residual underflow"},
	"data segment of 16 MiB": {false, func(v *villain, itt uint32) {
		_, _ = v.c.Write(wire(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag}, nil, 1<<24-1))
	}, ""},
	"header segments": {false, func(v *villain, itt uint32) {
		b := wire(&iscsi.SCSIResponse{ITT: itt, StatSN: v.next()}, nil, 0)
		b[4] = 0xff
		_, _ = v.c.Write(append(b, make([]byte, 4*0xff)...))
	}, ""},
	"an opcode of initiators": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.NOPOut{ITT: itt, TTT: iscsi.ReservedTag}, nil)
	}, ""},
	"login in full-feature phase": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.LoginResponse{ITT: itt}, nil)
	}, "unexpected"},
	"text that nobody asked for": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.TextResponse{Final: true, ITT: itt, TTT: iscsi.ReservedTag}, []byte("A=B\x00"))
	}, "unexpected"},
	"a storm of rejects": {false, func(v *villain, itt uint32) {
		for i := range 1000 {
			var bhs [iscsi.BHSSize]byte
			(&iscsi.SCSICommand{ITT: itt + uint32(i)}).Put(&bhs)
			v.send(&iscsi.Reject{Reason: 9, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, bhs[:])
		}
	}, ""},
	"a reject of nothing": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.Reject{Reason: 9, StatSN: v.next()}, []byte{1, 2, 3})
	}, "with 3 bytes of header"},
	"an answer to no ping": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.NOPIn{ITT: 0x123, TTT: iscsi.ReservedTag, StatSN: v.next()}, nil)
	}, "unknown ITT"},
	"the session is dropped": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.Async{Event: iscsi.AsyncSessionDrop, StatSN: v.next()}, nil)
	}, "drops the connection"},
	"an asynchronous message with sense that lies": {false, func(v *villain, itt uint32) {
		v.send(&iscsi.Async{Event: 0, StatSN: v.next()}, []byte{0xff, 0xff, 0x72})
		v.send(&iscsi.Async{Event: iscsi.AsyncConnDrop, StatSN: v.next()}, nil)
	}, "drops the connection"},
	"a jump of StatSN": {false, func(v *villain, itt uint32) {
		v.stat += 1 << 30
		v.send(&iscsi.SCSIResponse{Status: 8, ITT: itt, StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
		v.send(&iscsi.SCSIResponse{ITT: itt, StatSN: v.next()}, nil) // once more
	}, ""},
	"half a header": {false, func(v *villain, itt uint32) {
		_, _ = v.c.Write(make([]byte, 20))
		v.end()
	}, "EOF"},
}

// TestHostileTargets: a command ends with a clear error, the session with it unless only the answer was bad, and its
// buffer is the caller's. That no goroutine is left is seen at the end of all tests.
func TestHostileTargets(t *testing.T) {
	for name, c := range hostile {
		t.Run(name, func(t *testing.T) {
			address, wait := haunted(t, func(v *villain) {
				if v.login() != nil {
					return
				}
				if bhs, _, err := v.recv(); err == nil {
					c.does(v, iscsi.ITTOf(&bhs))
				}
			})
			defer wait()
			o := options(t)
			o.PingInterval = -1
			s, err := initiator.Open(t.Context(), &tcp.Dialer{}, address, diskName, o)
			require.NoError(t, err)
			whole := bytes.Repeat([]byte{0xdb}, 3*8192)
			cmd := initiator.Command{CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 16, 0}, In: whole[8192 : 2*8192]}
			if c.write {
				cmd.CDB[0], cmd.In, cmd.Out = 0x2a, nil, whole[8192:2*8192]
			}
			res, err := s.Do(t.Context(), cmd)
			if err == nil {
				err = res.Err()
			}
			require.Error(t, err)
			assert.ErrorContains(t, err, c.says)
			<-ended(s)
			assert.Equal(t, 2*8192, bytes.Count(whole[:8192], []byte{0xdb})+bytes.Count(whole[2*8192:], []byte{0xdb}), "around the buffer")
		})
	}
}

// ended closes a session that may be over.
func ended(s *initiator.Session) <-chan struct{} {
	_ = s.Close()
	return s.Done()
}

// TestHostileLogins: a target that never has enough, sends elsewhere in a circle, or says nothing.
func TestHostileLogins(t *testing.T) {
	answer := func(v *villain, text string, r iscsi.LoginResponse) {
		for {
			bhs, _, err := v.recv()
			if err != nil {
				return
			}
			var req iscsi.LoginRequest
			_ = req.Parse(&bhs)
			r.ITT, r.ISID, r.Current, r.StatSN = req.ITT, req.ISID, req.Current, v.next()
			v.send(&r, []byte(text))
		}
	}
	for name, c := range map[string]struct {
		play func(v *villain)
		says string
	}{
		"rounds without end": {func(v *villain) { answer(v, "", iscsi.LoginResponse{}) }, "rounds"},
		"text without end": {func(v *villain) {
			answer(v, "X-a.b.c="+string(bytes.Repeat([]byte("y"), 200))+"\x00", iscsi.LoginResponse{Continue: true})
		}, ""},
		"a circle": {func(v *villain) {
			answer(v, "TargetAddress="+v.c.LocalAddr().String()+"\x00", iscsi.LoginResponse{Status: iscsi.LoginMovedTemporarily})
		}, "circle"},
		"nowhere": {func(v *villain) {
			answer(v, "TargetAddress=a b\x00", iscsi.LoginResponse{Status: iscsi.LoginMovedTemporarily})
		}, "redirected to the address"},
		"silence":     {func(v *villain) {}, "no answer within"},
		"not a login": {func(v *villain) { _, _, _ = v.recv(); v.send(&iscsi.NOPIn{}, nil) }, "instead of a Login Response"},
		"a header of 16 MiB": {func(v *villain) {
			_, _ = v.c.Write(wire(&iscsi.LoginResponse{}, nil, 1<<24-1))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			address, wait := haunted(t, c.play)
			defer wait()
			o := options(t)
			if name == "silence" {
				o.LoginTimeout = 50 * time.Millisecond
			}
			_, err := initiator.Open(context.Background(), &tcp.Dialer{}, address, diskName, o)
			require.Error(t, err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// TestASilentTargetIsLeft: by the options' times for a command, and for the session.
func TestASilentTargetIsLeft(t *testing.T) {
	address, wait := haunted(t, func(v *villain) { _ = v.login() })
	defer wait()
	o := options(t)
	o.CommandTimeout, o.PingInterval = 50*time.Millisecond, -1
	s, err := initiator.Open(t.Context(), &tcp.Dialer{}, address, diskName, o)
	require.NoError(t, err)
	_, err = s.Do(t.Context(), initiator.Command{CDB: make([]byte, 6)})
	assert.ErrorIs(t, err, initiator.ErrTimeout)
	_ = s.Close() // waits for the logout's own time
	assert.Error(t, s.Err())
}

// TestAFloodOfPings is answered as far as the socket takes it, and a command goes on beside it.
func TestAFloodOfPings(t *testing.T) {
	address, wait := haunted(t, func(v *villain) {
		if v.login() != nil {
			return
		}
		bhs, _, err := v.recv()
		if err != nil {
			return
		}
		answers := make(chan struct{})
		go func() { // or both ends would wait for the other to read
			defer close(answers)
			for range 20000 {
				if _, _, err := v.recv(); err != nil {
					return
				}
			}
		}()
		flood := bytes.Repeat(wire(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 7, StatSN: v.stat, ExpCmdSN: 2, MaxCmdSN: 64}, nil, 0), 20000)
		_, _ = v.c.Write(flood)
		v.send(&iscsi.SCSIResponse{ITT: iscsi.ITTOf(&bhs), StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
		<-answers
		if bhs, _, err = v.recv(); err == nil { // logout
			v.send(&iscsi.LogoutResponse{ITT: iscsi.ITTOf(&bhs), StatSN: v.next(), ExpCmdSN: 2, MaxCmdSN: 64}, nil)
		}
	})
	defer wait()
	o := options(t)
	o.PingInterval = -1
	s, err := initiator.Open(t.Context(), &tcp.Dialer{}, address, diskName, o)
	require.NoError(t, err)
	res, err := s.Do(t.Context(), initiator.Command{CDB: make([]byte, 6)})
	require.NoError(t, err)
	assert.NoError(t, res.Err())
	assert.NoError(t, s.Close())
}

// FuzzHostileTarget: whatever bytes a target sends once a command is there, the command and the session end, and no byte
// beside the command's buffer changes.
func FuzzHostileTarget(f *testing.F) {
	const firstITT = 1 << 12 // of a session; a seed that names no task ends sooner
	for _, c := range hostile {
		a, b := net.Pipe()
		go func() {
			c.does(&villain{c: a, stat: 101}, firstITT)
			_ = a.Close()
		}()
		seed, _ := io.ReadAll(io.LimitReader(b, 64<<10))
		_ = b.Close()
		f.Add(seed, c.write)
	}
	f.Fuzz(func(t *testing.T, sent []byte, write bool) {
		address, wait := haunted(t, func(v *villain) {
			if v.login() != nil {
				return
			}
			if bhs, _, err := v.recv(); err == nil {
				for at := 0; at+iscsi.BHSSize <= len(sent); at += iscsi.BHSSize { // most PDUs are one header
					if binary.BigEndian.Uint32(sent[at+16:]) == firstITT {
						copy(sent[at+16:], bhs[16:20])
					}
				}
				_, _ = v.c.Write(sent)
				v.end()
			}
		})
		defer wait()
		o := options(t)
		o.PingInterval = -1
		s, err := initiator.Open(t.Context(), &tcp.Dialer{}, address, diskName, o)
		require.NoError(t, err)
		whole := bytes.Repeat([]byte{0xdb}, 3*8192)
		cmd := initiator.Command{CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 16, 0}, In: whole[8192 : 2*8192]}
		if write {
			cmd.CDB[0], cmd.In, cmd.Out = 0x2a, nil, whole[8192:2*8192]
		}
		_, _ = s.Do(t.Context(), cmd)
		<-ended(s)
		assert.Equal(t, 2*8192, bytes.Count(whole[:8192], []byte{0xdb})+bytes.Count(whole[2*8192:], []byte{0xdb}), "around the buffer")
	})
}
