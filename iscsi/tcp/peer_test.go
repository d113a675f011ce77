package tcp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/require"
)

// A header is any PDU type of package iscsi.
type header interface {
	Put(*[iscsi.BHSSize]byte)
	Parse(*[iscsi.BHSSize]byte) error
}

// A peer speaks raw PDUs, right or wrong, to the end under test.
type peer struct {
	t        testing.TB
	nc       net.Conn
	hd, dd   bool
	received []string // what recv has seen, for transcripts
}

// wire is a PDU's bytes; the DataSegmentLength is set.
func (p *peer) wire(h header, ahs, data []byte) []byte {
	var bhs [iscsi.BHSSize]byte
	h.Put(&bhs)
	bhs[4] = byte(len(ahs) / 4)
	iscsi.SetDataLength(&bhs, uint32(len(data)))
	b := append(bhs[:], ahs...)
	if p.hd {
		b = append(b, sum(b)...)
	}
	if len(data) == 0 {
		return b
	}
	segment := append(bytes.Clone(data), make([]byte, iscsi.Pad4(len(data))-len(data))...)
	b = append(b, segment...)
	if p.dd {
		b = append(b, sum(segment)...)
	}
	return b
}

func sum(b []byte) []byte {
	d := make([]byte, iscsi.DigestSize)
	iscsi.Digest(0).Add(b).Put(d)
	return d
}

func (p *peer) send(h header, data []byte) { p.write(p.wire(h, nil, data)) }

func (p *peer) write(b []byte) {
	p.t.Helper()
	require.NoError(p.t, p.nc.SetWriteDeadline(time.Now().Add(10*time.Second)))
	_, err := p.nc.Write(b)
	require.NoError(p.t, err)
}

// next reads one PDU.
func (p *peer) next() (bhs [iscsi.BHSSize]byte, data []byte, err error) {
	_ = p.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err = io.ReadFull(p.nc, bhs[:]); err != nil {
		return bhs, nil, err
	}
	rest := iscsi.AHSLengthOf(&bhs)
	n := int(iscsi.DataLengthOf(&bhs))
	if p.hd {
		rest += iscsi.DigestSize
	}
	size := rest + iscsi.Pad4(n)
	if p.dd && n > 0 {
		size += iscsi.DigestSize
	}
	b := make([]byte, size)
	if _, err = io.ReadFull(p.nc, b); err != nil {
		return bhs, nil, err
	}
	if p.hd {
		if !bytes.Equal(b[rest-4:rest], sum(append(bytes.Clone(bhs[:]), b[:rest-4]...))) {
			return bhs, nil, fmt.Errorf("header of %v: %w", iscsi.OpcodeOf(&bhs), ErrDigest)
		}
	}
	if p.dd && n > 0 {
		if !bytes.Equal(b[size-4:], sum(b[rest:size-4])) {
			return bhs, nil, fmt.Errorf("data of %v: %w", iscsi.OpcodeOf(&bhs), ErrDigest)
		}
	}
	for _, pad := range b[rest+n : rest+iscsi.Pad4(n)] {
		if pad != 0 {
			return bhs, nil, fmt.Errorf("padding of %v is not zero", iscsi.OpcodeOf(&bhs))
		}
	}
	return bhs, b[rest : rest+n], nil
}

// recv reads one PDU, which must be of h's type, into h.
func (p *peer) recv(h header) []byte {
	p.t.Helper()
	bhs, data, err := p.next()
	require.NoError(p.t, err)
	p.received = append(p.received, transcript(&bhs, data))
	require.NoError(p.t, h.Parse(&bhs), "%x", bhs)
	return data
}

// closed checks that the end under test has ended the connection.
func (p *peer) closed() {
	p.t.Helper()
	for {
		if _, _, err := p.next(); err != nil {
			ne, ok := err.(net.Error)
			require.False(p.t, ok && ne.Timeout(), "the connection is still up")
			return
		}
	}
}

// transcript is a header in hex, 4 bytes a group, and what is behind it.
func transcript(bhs *[iscsi.BHSSize]byte, data []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14v", iscsi.OpcodeOf(bhs))
	for i := 0; i < iscsi.BHSSize; i += 4 {
		b.WriteByte(' ')
		b.WriteString(hex.EncodeToString(bhs[i : i+4]))
	}
	if len(data) > 0 {
		fmt.Fprintf(&b, " + %d bytes", len(data))
	}
	return b.String()
}

// A diskRig is a disk with a raw initiator.
type diskRig struct {
	*peer
	disk  *disk
	ended chan error
}

// serve starts a disk of 1 MiB against a raw peer.
func serve(t testing.TB, p iscsi.Params, set ...func(*disk)) *diskRig {
	a, b := socketPair(t)
	r := &diskRig{
		peer:  &peer{t: t, nc: a, hd: p.HeaderDigest, dd: p.DataDigest},
		disk:  newDisk(b, p, 1<<20),
		ended: make(chan error, 1),
	}
	for _, f := range set {
		f(r.disk)
	}
	go func() {
		defer close(r.ended)
		r.ended <- r.disk.run()
	}()
	t.Cleanup(func() {
		_ = a.Close()
		for range r.ended {
		}
	})
	return r
}

// end closes the peer's side and returns why the disk's loop ended; its memory may be looked at then.
func (r *diskRig) end() error {
	_ = r.nc.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, r.nc)
	return r.over()
}

// over waits for the disk's loop to end by itself.
func (r *diskRig) over() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(10 * time.Second):
		require.Fail(r.t, "the target's loop goes on")
		return nil
	}
}

// command is a SCSI command of the tests' disk.
func command(op byte, itt uint32, off uint64, length, edtl uint32) *iscsi.SCSICommand {
	c := &iscsi.SCSICommand{
		Final: true, Read: op == opRead, Write: op == opWrite, ITT: itt, EDTL: edtl,
		LUN: iscsi.LUNFromNumber(5), Attr: iscsi.AttrSimple, CmdSN: iscsi.CmdSN(itt),
	}
	c.CDB[0] = op
	for i := range 8 {
		c.CDB[2+i] = byte(off >> (56 - 8*i))
	}
	for i := range 4 {
		c.CDB[10+i] = byte(length >> (24 - 8*i))
	}
	return c
}

// dataOut is a Data-Out of a sequence.
func dataOut(itt, ttt, sn, off uint32, final bool) *iscsi.DataOut {
	return &iscsi.DataOut{Final: final, ITT: itt, TTT: ttt, DataSN: sn, Offset: off}
}
