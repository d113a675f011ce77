package main

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi/isns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTargetsAreRegistered: at a name server on a socket, with the address by which it can reach us, and taken back
// when the daemon ends.
func TestTargetsAreRegistered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	requests := make(chan isns.Message, 2)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go answerISNS(nc, requests)
		}
	}()
	c := config(t, anyPort, ramStore, ramTarget)
	c.ISNS = conf.ISNS{Server: l.Addr().String(), Entity: "box"}
	s := serve(t, c)
	_, port, err := net.SplitHostPort(s.served()[0].Addr().String())
	require.NoError(t, err)

	next := func() isns.Message {
		select {
		case m := <-requests:
			return m
		case <-time.After(10 * time.Second):
			t.Fatal("no request comes")
		}
		return isns.Message{}
	}
	m := next()
	assert.Equal(t, isns.DevAttrReg, m.Function)
	assert.Contains(t, string(m.Payload), "iqn.2026-01.example:ram")
	n, err := net.LookupPort("tcp", port)
	require.NoError(t, err)
	place := append([]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}, 0, 0, 0, 17, 0, 0, 0, 4)
	assert.Contains(t, string(m.Payload), string(binary.BigEndian.AppendUint32(place, uint32(n))))
	s.stopISNS()
	assert.Equal(t, isns.DevDereg, next().Function)
}

// answerISNS says yes to whatever comes.
func answerISNS(nc net.Conn, requests chan<- isns.Message) {
	defer nc.Close()
	for {
		b := make([]byte, 12)
		if _, err := io.ReadFull(nc, b); err != nil {
			return
		}
		b = append(b, make([]byte, binary.BigEndian.Uint16(b[4:]))...)
		if _, err := io.ReadFull(nc, b[12:]); err != nil {
			return
		}
		var m isns.Message
		if _, err := m.Parse(b); err != nil {
			return
		}
		requests <- m
		answer := isns.Message{Function: m.Function | 0x8000, Flags: isns.LastPDU, Transaction: m.Transaction, Payload: make([]byte, 4)}
		if _, err := nc.Write(answer.Append(nil)); err != nil {
			return
		}
	}
}
