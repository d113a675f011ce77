package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// What bare sockets do between two processes on loopback.
const (
	streamTCP    = "TCP stream"
	streamUDP    = "UDP stream" // packets of our RoCE, with segmentation offload; sealed, not checked
	roundTripTCP = "TCP round trip"
	roundTripUDP = "UDP round trip"
)

const (
	// A burst of the UDP stream, and how many packets may be on the way.
	packetSize     = 4096
	packetsInBurst = 15
	packetWindow   = 512
)

// limit runs one of them: `peers limit -m KIND -b BYTES -t SECONDS`; with an address behind, as the far end.
func limit(args []string) error {
	w, seconds, rest := flags("limit", args)
	if len(rest) > 0 {
		return farEnd(w, rest)
	}
	addr := netip.AddrFrom4([4]byte{127, byte(os.Getpid() >> 8), byte(os.Getpid()), 100})
	to, stop, err := startFarEnd(args, addr)
	if err != nil {
		return err
	}
	m := &meter{hist: hdrhistogram.New(1, maxMicros, 3), warm: time.Now().Add(time.Duration(seconds * 1e8)), end: time.Now().Add(time.Duration(seconds * 1e9))}
	used := processorTime()
	if w.Mode == streamUDP {
		err = m.sendPackets(w, addr.Next(), addr)
	} else {
		err = m.exchange(w, to)
	}
	used = processorTime() - used
	if err = errors.Join(err, stop()); err != nil {
		return fmt.Errorf("%s: %w", w.Mode, err)
	}
	h := m.hist
	return json.NewEncoder(os.Stdout).Encode(counted{
		Seconds: m.end.Sub(m.warm).Seconds(), IOs: float64(m.ios) / float64(w.Bytes), All: float64(m.all) / float64(w.Bytes), CPU: used.Seconds(),
		Mean: h.Mean(), P50: float64(h.ValueAtQuantile(50)), P99: float64(h.ValueAtQuantile(99)), P999: float64(h.ValueAtQuantile(99.9)),
	})
}

// startFarEnd starts the other process, which says where it is. It ends when its standard input does.
func startFarEnd(args []string, addr netip.Addr) (to string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	c := exec.Command(self, append(append([]string{"limit"}, args...), addr.String())...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	return strings.TrimSpace(lines.Text()), func() error {
		_ = in.Close()
		return c.Wait()
	}, nil
}

// farEnd answers until its standard input ends.
func farEnd(w workload, rest []string) error {
	addr, err := netip.ParseAddr(rest[0])
	if err != nil {
		return err
	}
	var end io.Closer
	switch w.Mode {
	case streamUDP:
		end, err = receivePackets(addr)
	case roundTripUDP:
		end, err = answerDatagrams(w.Bytes)
	default:
		end, err = answerStream(w)
	}
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return end.Close()
}

func answerStream(w workload) (io.Closer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fmt.Println(l.Addr())
	go func() {
		c, err := l.Accept()
		buf := make([]byte, w.Bytes)
		for err == nil {
			if w.Mode == streamTCP {
				_, err = c.Read(buf)
			} else if _, err = io.ReadFull(c, buf); err == nil {
				_, err = c.Write(buf)
			}
		}
	}()
	return l, nil
}

func answerDatagrams(bytes int) (io.Closer, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	fmt.Println(c.LocalAddr())
	go func() {
		buf := make([]byte, bytes)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf, from) // a lost one ends the run
		}
	}()
	return c, nil
}

// A meter counts bytes and round trips from warm to end.
type meter struct {
	warm, end time.Time
	ios, all  int // bytes
	hist      *hdrhistogram.Histogram
}

// took counts what ended now and reports whether to go on.
func (m *meter) took(bytes int, begun time.Time) bool {
	now := time.Now()
	m.all += bytes
	if now.After(m.warm) && now.Before(m.end) {
		m.ios += bytes
		_ = m.hist.RecordValue(min(max(now.Sub(begun).Microseconds(), 1), maxMicros)) // within its bounds
	}
	return now.Before(m.end)
}

// exchange writes, and for round trips reads the answer.
func (m *meter) exchange(w workload, to string) error {
	network := "tcp"
	if w.Mode == roundTripUDP {
		network = "udp"
	}
	c, err := net.Dial(network, to)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(m.end.Add(patience)); err != nil {
		return err
	}
	buf := make([]byte, w.Bytes)
	for begun := time.Now(); ; begun = time.Now() {
		switch w.Mode {
		case streamTCP:
			_, err = c.Write(buf)
		default:
			if _, err = c.Write(buf); err == nil && network == "tcp" {
				_, err = io.ReadFull(c, buf)
			} else if err == nil {
				_, err = c.Read(buf)
			}
		}
		if err != nil || !m.took(len(buf), begun) {
			return err
		}
	}
}

// sendPackets sends bursts, as many on the way as the far end's words allow.
func (m *meter) sendPackets(w workload, from, to netip.Addr) error {
	l, err := link.Listen(from, link.Options{})
	if err != nil {
		return err
	}
	defer l.Close()
	b := link.Burst{Path: wire.NewPath(from, to), Size: wire.BTHSize + packetSize + wire.ICRCSize}
	for range packetsInBurst {
		b.Data = append(b.Data, wire.New(make([]byte, b.Size+3), wire.SendMiddle, packetSize)...)
	}
	bursts, words := []link.Burst{b}, make([]link.Received, 16)
	for sent, got := 0, 0; ; {
		for sent-got > packetWindow-packetsInBurst {
			n, err := l.Recv(words, m.end.Add(patience))
			if err == nil && n == 0 {
				err = errors.New("packets were lost")
			}
			if err != nil {
				return err
			}
			for _, r := range words[:n] {
				got = max(got, int(binary.BigEndian.Uint64(r.Data[wire.BTHSize:])))
			}
		}
		begun := time.Now()
		if err := l.Send(bursts); err != nil {
			return err
		}
		sent += packetsInBurst
		if !m.took(packetsInBurst*packetSize, begun) {
			return nil
		}
	}
}

// receivePackets takes bursts and says how many packets have come.
func receivePackets(addr netip.Addr) (io.Closer, error) {
	l, err := link.Listen(addr, link.Options{})
	if err != nil {
		return nil, err
	}
	fmt.Println(addr)
	go func() {
		word := link.Burst{Path: wire.NewPath(addr, addr.Next()), Size: wire.BTHSize + 8 + wire.ICRCSize}
		word.Data = wire.New(make([]byte, word.Size+3), wire.SendMiddle, 8)
		rs := make([]link.Received, 16)
		for got := uint64(0); ; {
			n, err := l.Recv(rs, time.Time{})
			if err != nil {
				return
			}
			for _, r := range rs[:n] {
				got += uint64((len(r.Data) + r.Size - 1) / r.Size)
			}
			binary.BigEndian.PutUint64(word.Data[wire.BTHSize:], got)
			if n > 0 && l.Send([]link.Burst{word}) != nil {
				return
			}
		}
	}()
	return l, nil
}
