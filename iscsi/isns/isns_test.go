package isns

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func node(name string, portals ...string) Node {
	n := Node{Name: name}
	for i, p := range portals {
		n.Portals = append(n.Portals, Portal{netip.MustParseAddrPort(p), uint16(i + 1)})
	}
	return n
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// TestRegistrationBytes is laid out by hand from RFC 4171, 5.1 and 5.6.5.1.
func TestRegistrationBytes(t *testing.T) {
	want := unhex(t, `
		0001 0001 00d0 9c00 0000 0000
		00000020 0000000c 69716e2e 783a6469 736b0000
		00000001 00000004 626f7800
		00000000 00000000
		00000001 00000004 626f7800
		00000002 00000004 00000002
		00000006 00000004 00000384
		00000010 00000010 00000000 00000000 0000ffff c0000201
		00000011 00000004 00000cbc
		00000020 0000000c 69716e2e 783a6469 736b0000
		00000021 00000004 00000001
		00000022 00000008 7363 7261 7463 6800
		00000031 00000010 00000000 00000000 0000ffff c0000201
		00000032 00000004 00000cbc
		00000033 00000004 00000001`)
	n := node("iqn.x:disk", "192.0.2.1:3260")
	n.Alias = "scratch"
	got := registrations("box", 15*time.Minute, []Node{n}, true)
	require.Len(t, got, 1)
	assert.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got[0]))

	got = registrations("box", 15*time.Minute, []Node{n}, false)
	want[6] = 0x8c
	assert.Equal(t, want, got[0], "without Replace")

	assert.Equal(t, unhex(t, `
		0001 0004 0028 8c00 0000 0000
		00000020 0000000c 69716e2e 783a6469 736b0000
		00000000 00000000
		00000001 00000004 626f7800`), deregistration("box", "iqn.x:disk"))
}

func TestManyTargetsTakeSeveralMessages(t *testing.T) {
	var nodes []Node
	for i := range 1000 {
		nodes = append(nodes, node(fmt.Sprintf("iqn.x:%0200d", i), "192.0.2.1:3260", "[2001:db8::1]:3260"))
	}
	list := registrations("box", time.Minute, nodes, true)
	require.Greater(t, len(list), 10)
	names, portals := map[string]int{}, 0
	for i, b := range list {
		var m Message
		rest, err := m.Parse(b)
		require.NoError(t, err)
		require.Empty(t, rest)
		assert.LessOrEqual(t, len(m.Payload), maxBatch)
		assert.Equal(t, i == 0, m.Flags&Replace != 0, "what follows must not take out what went before")
		delimited := false
		require.NoError(t, eachAttr(m.Payload, func(tag Tag, value []byte) {
			switch {
			case tag == TagDelimiter:
				delimited = true
			case tag == TagName && delimited:
				names[string(bytes.TrimRight(value, "\x00"))]++
			case tag == TagPortalAddr:
				portals++
			}
		}))
	}
	assert.Len(t, names, 1000)
	for name, n := range names {
		require.Equal(t, 1, n, name)
	}
	assert.Equal(t, 2, portals)
}

func TestEveryTruncationIsShort(t *testing.T) {
	b := deregistration("box", "iqn.x:disk")
	for n := range b {
		var m Message
		_, err := m.Parse(b[:n])
		require.ErrorIs(t, err, ErrShort, "%d bytes", n)
	}
	payload := b[headerSize:]
	for n := 1; n < len(payload); n++ {
		if n == 20 || n == 28 { // between attributes
			continue
		}
		require.ErrorIs(t, eachAttr(payload[:n], func(Tag, []byte) {}), ErrWire, "%d bytes", n)
	}
	for _, s := range []string{"0002 0001 0000 0000 0000 0000", "0001 0001 0002 0000 0000 0000 0000"} {
		var m Message
		_, err := m.Parse(unhex(t, s))
		require.ErrorIs(t, err, ErrWire)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(deregistration("box", "iqn.x:disk"))
	f.Add(registrations("box", time.Minute, []Node{node("iqn.x:disk", "192.0.2.1:3260")}, true)[0])
	f.Add(reply(DevAttrReg, 1, 0, LastPDU, 0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		rest, err := m.Parse(b)
		if err != nil {
			return
		}
		require.Equal(t, b[:len(b)-len(rest)], m.Append(nil))
		_ = eachAttr(m.Payload, func(_ Tag, value []byte) { _ = append([]byte(nil), value...) })
		_, _ = answered(m.Function, m.Payload)
	})
}

// reply is a response as a server makes it.
func reply(f Function, transaction, sequence uint16, flags Flags, status uint32, attrs []byte) []byte {
	payload := attrs
	if sequence == 0 {
		payload = append([]byte{byte(status >> 24), byte(status >> 16), byte(status >> 8), byte(status)}, attrs...)
	}
	return (&Message{Function: f | response, Flags: FromServer | flags, Transaction: transaction, Sequence: sequence, Payload: payload}).Append(nil)
}

// A fakeServer answers on pipes.
type fakeServer struct {
	t        *testing.T
	requests chan Message

	mu sync.Mutex
	// answer makes what goes back; nil bytes: nothing ever.
	answer func(m Message) []byte
	down   bool
	nodes  []Node // of the client
}

// set changes what the server does.
func (s *fakeServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeServer) dial(context.Context, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		for {
			m, err := readMessage(theirs)
			if err != nil {
				return
			}
			s.requests <- *m
			var b []byte
			if s.set(func() { b = s.answer(*m) }); b != nil {
				_, _ = theirs.Write(b)
			} else {
				_, _ = io.Copy(io.Discard, theirs)
				return
			}
		}
	}()
	return ours, nil
}

func (s *fakeServer) next() Message {
	s.t.Helper()
	select {
	case m := <-s.requests:
		return m
	case <-time.After(time.Hour):
		s.t.Fatal("no request comes")
	}
	return Message{}
}

func success(m Message) []byte {
	return reply(m.Function, m.Transaction, 0, FirstPDU|LastPDU, 0, appendNumber(nil, TagPeriod, 300))
}

// start runs a client against s; stop ends it and waits.
func start(s *fakeServer) (log *test.Hook, stop func()) {
	logger, hook := test.NewNullLogger()
	c := New(Config{Server: "isns:3205", Entity: "box", Log: logger, Nodes: func(netip.Addr) (list []Node) {
		s.set(func() { list = s.nodes })
		return list
	}})
	c.dial = s.dial
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	return hook, func() { cancel(); <-done }
}

func TestALifeOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{t: t, requests: make(chan Message), answer: success}
		one := []Node{node("iqn.x:disk", "192.0.2.1:3260")}
		s.nodes = one
		log, stop := start(s)
		m := s.next()
		assert.Equal(t, DevAttrReg, m.Function)
		assert.NotZero(t, m.Flags&Replace, "whatever an earlier life has left goes")
		begin := time.Now()
		m = s.next()
		assert.Equal(t, 100*time.Second, time.Since(begin), "a third of the period that the server says")
		assert.Zero(t, m.Flags&Replace, "nothing has changed")
		s.set(func() { s.nodes = append(one, node("iqn.x:more", "192.0.2.1:3260")) })
		m = s.next()
		assert.NotZero(t, m.Flags&Replace)
		assert.Contains(t, string(m.Payload), "iqn.x:more")
		s.set(func() { s.nodes = nil })
		m = s.next()
		assert.Equal(t, DevDereg, m.Function, "nothing is left to be found")
		s.set(func() { s.nodes = one })
		m = s.next()
		assert.Equal(t, DevAttrReg, m.Function)
		synctest.Wait()
		go stop()
		assert.Equal(t, DevDereg, s.next().Function)
		synctest.Wait()
		for _, e := range log.AllEntries() {
			assert.Equal(t, logrus.InfoLevel, e.Level, e.Message)
		}
	})
}

func TestARefusingServerIsTriedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{t: t, requests: make(chan Message, 1), down: true, nodes: []Node{node("iqn.x:disk", "192.0.2.1:3260")}}
		log, stop := start(s)
		time.Sleep(time.Hour)
		assert.Less(t, len(log.AllEntries()), 20)
		assert.Contains(t, log.LastEntry().Message, "next try in 5m0s")
		s.set(func() {
			s.answer = func(m Message) []byte { return reply(m.Function, m.Transaction, 0, LastPDU, 8, nil) }
			s.down = false
		})
		m := s.next()
		assert.NotZero(t, m.Flags&Replace)
		synctest.Wait()
		assert.ErrorContains(t, log.LastEntry().Data["err"].(error), "status 8 (source unauthorized)")
		stop() // nothing is registered: nothing is taken back
		assert.Empty(t, s.requests)
	})
}

// TestAServerThatNeverAnswers holds nobody up: an attempt ends after its timeout, and the end of the daemon too.
func TestAServerThatNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{t: t, requests: make(chan Message, 9), answer: func(Message) []byte { return nil }, nodes: []Node{node("iqn.x:disk", "192.0.2.1:3260")}}
		log, stop := start(s)
		s.next()
		begin := time.Now()
		s.next()
		assert.Equal(t, exchangeTimeout+retryLeast, time.Since(begin))
		begin = time.Now()
		stop()
		assert.Equal(t, leaveTimeout, time.Since(begin), "an attempt is given up at once; it may have come through")
		assert.NotEmpty(t, log.AllEntries())

		s.set(func() { s.answer = success })
		_, stop = start(s)
		s.next()
		synctest.Wait()
		s.set(func() { s.answer = func(Message) []byte { return nil } })
		begin = time.Now()
		stop()
		assert.Equal(t, leaveTimeout, time.Since(begin))
	})
}

func TestAnswers(t *testing.T) {
	long := func(m Message) []byte {
		b := reply(m.Function, 99, 0, LastPDU, 3, nil)                       // of another
		b = append(b, reply(DevDereg, m.Transaction, 0, LastPDU, 3, nil)...) // of another function
		b = append(b, reply(m.Function, m.Transaction, 0, FirstPDU, 0, appendNumber(nil, TagPeriod, 3600))...)
		return append(b, reply(m.Function, m.Transaction, 1, LastPDU, 0, appendString(nil, TagName, "iqn.x:disk"))...)
	}
	for name, c := range map[string]struct {
		answer func(m Message) []byte
		err    string
	}{
		"in several PDUs": {long, ""},
		"refused":         {func(m Message) []byte { return reply(m.Function, m.Transaction, 0, LastPDU, 12, nil) }, "status 12 (busy)"},
		"unknown status":  {func(m Message) []byte { return reply(m.Function, m.Transaction, 0, LastPDU, 1<<31, nil) }, "unknown status"},
		"no status": {func(m Message) []byte {
			return (&Message{Function: m.Function | response, Flags: LastPDU, Transaction: m.Transaction}).Append(nil)
		}, "a response without status"},
		"bad attribute": {func(m Message) []byte {
			return reply(m.Function, m.Transaction, 0, LastPDU, 0, []byte{0, 0, 0, 6, 0xff, 0xff, 0xff, 0xfc})
		}, "an attribute of 4294967292 bytes"},
		"no end": {func(m Message) []byte {
			return bytes.Repeat(reply(m.Function, m.Transaction, 1, 0, 0, nil), maxAnswerPDUs)
		}, "does not come to the end"},
		"not iSNS": {func(Message) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, "version 18516"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{t: t, requests: make(chan Message, 9), answer: c.answer}
				cl := New(Config{Server: "isns:3205", Entity: "box", Log: logrus.New()})
				conn, _ := s.dial(t.Context(), "")
				defer conn.Close()
				p, err := cl.exchange(t.Context(), conn, DevAttrReg, registrations("box", time.Minute, []Node{node("iqn.x:a", "192.0.2.1:1")}, true)[0])
				if c.err == "" {
					require.NoError(t, err)
					assert.Equal(t, time.Hour, p)
					return
				}
				assert.ErrorContains(t, err, c.err)
			})
		})
	}
}
