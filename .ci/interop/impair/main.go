// Impair is a bad wire between two network interfaces: it passes frames on, loses some, sends some twice, and lets some
// be overtaken, each way. It is for kernels that have no netem.
//
//	impair [-loss 1] [-reorder 1] [-duplicate 1] [-seed 1] INTERFACE INTERFACE
//
// The rates are percentages of the frames. It runs until it is told to end (SIGTERM), and then says what it did, a line for
// each way. What it does depends on the seed and on the order of frames alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	var r rates
	flag.Float64Var(&r.loss, "loss", 1, "`PERCENT` of frames that are lost")
	flag.Float64Var(&r.reorder, "reorder", 1, "`PERCENT` of frames that are overtaken")
	flag.Float64Var(&r.duplicate, "duplicate", 1, "`PERCENT` of frames that are sent twice")
	seed := flag.Uint64("seed", 1, "seed of chance")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, r, *seed, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "impair:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, r rates, seed uint64, names []string) error {
	if len(names) != 2 {
		return errors.New("want two interfaces")
	}
	var ends [2]int
	for i, name := range names {
		fd, err := open(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer unix.Close(fd)
		ends[i] = fd
	}
	var lines [2]*line
	errs := make(chan error, len(lines))
	var wg sync.WaitGroup
	for i := range lines {
		to := ends[1-i]
		lines[i] = newLine(r, rand.New(rand.NewPCG(seed, uint64(i))), func(frame []byte) error { return send(to, frame) })
		wg.Go(func() { errs <- pass(ctx, ends[i], lines[i]) })
	}
	fmt.Println("ready")
	err := errors.Join(<-errs, <-errs)
	wg.Wait()
	for i, l := range lines {
		fmt.Printf("%s to %s: %s\n", names[i], names[1-i], l)
	}
	return err
}

// Sizes in bytes: of the longest frame, with what the kernel notes of it before, and of a socket's queue. What does not
// fit into the queue is lost, as on any wire.
const (
	maxFrame  = 64<<10 + 10
	queueSize = 8 << 20
)

// open binds a packet socket to an interface. Each frame comes with a header that says what the kernel has left to be
// done, checksums above all, and goes out with the same header (virtio_net_hdr, packet(7)).
func open(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	const protocol = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, err
	}
	// A wait ends each millisecond: what is held back for others to overtake goes on then, if nothing came.
	wait := unix.Timeval{Usec: 1000}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, queueSize),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: i.Index}),
	)
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// pass has a line take every frame that comes from a socket, until ctx ends.
func pass(ctx context.Context, fd int, l *line) error {
	frame := make([]byte, maxFrame)
	for ctx.Err() == nil {
		n, err := unix.Read(fd, frame)
		switch {
		case err == nil:
			err = l.take(frame[:n])
		case errors.Is(err, unix.EAGAIN):
			err = l.idle()
		case errors.Is(err, unix.EINTR):
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return l.idle()
}

// send waits for room, and drops what an interface does not take.
func send(fd int, frame []byte) error {
	for {
		_, err := unix.Write(fd, frame)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EMSGSIZE):
			return nil
		}
		return err
	}
}
