package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"strings"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/scsi"
)

// portal serves a RAM disk for the examples, which would otherwise need an address of yours.
func portal() (address string, stop func()) {
	l, err := tcp.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return l.Addr().String(), serveRAM(l)
}

// iserPortal does it over iSER, at an address that other processes on this machine do not use.
func iserPortal() (address string, stop func()) {
	a := rdmatest.Address(1)
	rdma := roce.New(roce.Options{Addr: a})
	l, err := iser.Listen(rdma, netip.AddrPortFrom(a, 3260), iser.TargetConfig{})
	if err != nil {
		log.Fatal(err)
	}
	end := serveRAM(l)
	return a.String(), func() {
		end()
		_ = rdma.Close()
	}
}

// dialled is a disk for examples of what can be done with one. The first example shows how it is dialed.
func dialled(ctx context.Context) (disk *dial.Disk, stop func()) {
	address, end := portal()
	disk, err := dial.Dial(ctx, "iscsi://"+address+"/iqn.2026-01.com.example:disk/0")
	if err != nil {
		log.Fatal(err)
	}
	return disk, func() {
		_ = disk.Close()
		end()
	}
}

func serveRAM(l iscsi.Listener) (stop func()) {
	pool, err := arena.New(16 * arena.ChunkSize)
	if err != nil {
		log.Fatal(err)
	}
	ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	if err != nil {
		log.Fatal(err)
	}
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: "iqn.2026-01.com.example:disk"})
	if _, err = dev.Add(0, ram, scsi.LUConfig{ID: "example"}); err != nil {
		log.Fatal(err)
	}
	s := target.New(target.Config{Pool: pool})
	if err = s.RegisterMemory(ram.(backstore.Mapper).Memory()); err != nil {
		log.Fatal(err)
	}
	if _, err = s.AddTarget(target.TargetConfig{Name: "iqn.2026-01.com.example:disk", Device: dev, Negotiate: iscsi.DefaultConfig()}); err != nil {
		log.Fatal(err)
	}
	if err = s.Serve(l, target.PortalConfig{}); err != nil {
		log.Fatal(err)
	}
	return func() {
		_ = s.Shutdown(context.Background())
		_ = pool.Close()
		_ = ram.Close()
	}
}

// Dial a disk over iSER, write to it, and verify what it keeps. For TCP the URL starts with iscsi://.
func Example() {
	address, stop := iserPortal()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	disk, err := dial.Dial(ctx, "iser://"+address+"/iqn.2026-01.com.example:disk/0?rdma=roce")
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()

	data := bytes.Repeat([]byte("what was written is what is read"), 2048)
	if err := disk.WriteAt(ctx, data, 8192); err != nil {
		log.Fatal(err)
	}
	if err := disk.Flush(ctx); err != nil { // now it is safe from a power cut
		log.Fatal(err)
	}
	got := make([]byte, len(data))
	if err := disk.ReadAt(ctx, got, 8192); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(got), "bytes, as written:", bytes.Equal(got, data))
	// Output: 65536 bytes, as written: true
}

// Move data without a copy: the device reads and writes the buffer's memory itself, where it can.
func ExampleDisk_AllocBuffer() {
	ctx := context.Background()
	disk, stop := dialled(ctx)
	defer stop()

	b, err := disk.AllocBuffer(ctx, 1<<20) // once
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = b.Close() }() // before the session's end, or after it
	page := b.Bytes()[:4096]         // any part of it will do
	copy(page, "hello, world")
	if err := disk.WriteAt(ctx, page, 8192); err != nil {
		log.Fatal(err)
	}
	clear(page)
	if err := disk.ReadAt(ctx, page, 8192); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", page[:12])
	// Output: hello, world
}

// Use a disk as a file: byte offsets of any alignment, for all that takes an io.ReaderAt or io.WriterAt.
func ExampleDisk_File() {
	ctx := context.Background()
	disk, stop := dialled(ctx)
	defer stop()

	f := disk.File(ctx)
	if _, err := io.Copy(io.NewOffsetWriter(f, 1000), strings.NewReader("hello, world")); err != nil {
		log.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(f, 1007, 5))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", got)
	// Output: world
}

// Add to a counter in a block that others add to as well: CompareAndWrite writes only if nobody was faster.
func ExampleDisk_CompareAndWrite() {
	ctx := context.Background()
	disk, stop := dialled(ctx)
	defer stop()

	old, now := make([]byte, disk.BlockSize()), make([]byte, disk.BlockSize())
	for {
		if err := disk.ReadAt(ctx, old, 0); err != nil {
			log.Fatal(err)
		}
		copy(now, old)
		now[0]++
		err := disk.CompareAndWrite(ctx, old, now, 0)
		if _, faster := errors.AsType[*initiator.MiscompareError](err); faster {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		break
	}
	fmt.Println("counter:", now[0])
	// Output: counter: 1
}

// A connection that comes back: the session is opened again when it was lost, for up to a minute, and the disk goes on.
// Exclusive vouches that nobody else writes to these blocks, so that writes may be sent again.
func ExampleConnect() {
	address, stop := portal()
	defer stop()
	ctx := context.Background()
	c, err := initiator.Connect(ctx, &tcp.Dialer{}, address, "iqn.2026-01.com.example:disk", initiator.Options{
		ReconnectTimeout: time.Minute, Exclusive: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	disk, err := c.Disk(ctx, iscsi.LUNFromNumber(0))
	if err != nil {
		log.Fatal(err)
	}

	s, err := c.Session(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_ = s.Close() // as if it had been lost
	err = disk.WriteAt(ctx, make([]byte, disk.BlockSize()), 0)
	if unknown, ok := errors.AsType[*initiator.UnknownOutcomeError](err); ok {
		log.Fatal("read what is there before going on: ", unknown)
	}
	fmt.Println(err)
	// Output: <nil>
}

// Reach a disk through two portals: when one goes the other serves, and states of access (ALUA) say which is the better.
func ExampleConnectPaths() {
	one, stopOne := portal()
	defer stopOne()
	ctx := context.Background()
	dialer := &dial.Dialer{Options: initiator.Options{ReconnectTimeout: time.Minute}}
	defer dialer.Close()
	disk, err := dialer.DialPaths(ctx,
		"iscsi://"+one+"/iqn.2026-01.com.example:disk/0",
		"iscsi://127.0.0.1:1/iqn.2026-01.com.example:disk/0") // nobody is there yet: it is tried again
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()

	if err := disk.WriteAt(ctx, make([]byte, disk.BlockSize()), 0); err != nil {
		log.Fatal(err)
	}
	for _, path := range disk.PathStates() {
		fmt.Println("in use:", path.InUse, "problem:", path.Err)
	}
	// Output:
	// in use: true problem: <nil>
	// in use: false problem: no session
}

// Keep a disk to ourselves, by a persistent reservation.
func ExampleDisk_Reserve() {
	ctx := context.Background()
	disk, stop := dialled(ctx)
	defer stop()

	const key = 0x6f75727321
	if err := disk.RegisterAndIgnore(ctx, key, false); err != nil {
		log.Fatal(err)
	}
	switch err := disk.Reserve(ctx, key, initiator.WriteExclusive); {
	case errors.Is(err, initiator.ErrReservationConflict):
		log.Fatal("another host has it")
	case err != nil:
		log.Fatal(err)
	}
	r, err := disk.ReadReservation(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("held by %#x\n", r.Key)
	// Output: held by 0x6f75727321
}

// Prove who we are, and have the target prove who it is, by secrets that no log and no error shows.
func ExampleOpen_chap() {
	address, stop := portal()
	defer stop()

	ours, err := chap.NewSecret("of the host, at least 12 bytes")
	if err != nil {
		log.Fatal(err)
	}
	theirs, err := chap.NewSecret("of the disk, another one")
	if err != nil {
		log.Fatal(err)
	}
	_, err = initiator.Open(context.Background(), &tcp.Dialer{}, address, "iqn.2026-01.com.example:disk", initiator.Options{
		CHAP: &chap.Credentials{User: "host", Secret: ours, MutualUser: "disk", MutualSecret: theirs},
	})
	// This target knows no secrets, and is not let off proving itself.
	if refused, ok := errors.AsType[*iscsi.LoginError](err); ok {
		fmt.Println(refused.Status)
	}
	fmt.Println(ours)
	// Output:
	// authentication failed
	// (secret)
}

// Ask a portal for its targets.
func ExampleDiscover() {
	address, stop := portal()
	defer stop()

	targets, err := initiator.Discover(context.Background(), &tcp.Dialer{}, address, initiator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range targets {
		fmt.Println(t.Name, "at", len(t.Addresses), "address")
	}
	// Output: iqn.2026-01.com.example:disk at 1 address
}

// Log in, write to a disk and read back. Over RDMA only the transport differs: an *iser.Dialer.
func ExampleOpen() {
	address, stop := portal()
	defer stop()
	ctx := context.Background()

	s, err := initiator.Open(ctx, &tcp.Dialer{}, address, "iqn.2026-01.com.example:disk", initiator.Options{
		InitiatorName: "iqn.2026-01.com.example:me",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	disk, err := s.Disk(ctx, iscsi.LUNFromNumber(0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(disk.SizeBytes(), "bytes in blocks of", disk.BlockSize())

	block := make([]byte, disk.BlockSize())
	copy(block, "hello")
	if err := disk.WriteAt(ctx, block, 4096); err != nil {
		log.Fatal(err)
	}
	if err := disk.Flush(ctx); err != nil { // now it is safe from a power cut
		log.Fatal(err)
	}
	got := make([]byte, disk.BlockSize())
	if err := disk.ReadAt(ctx, got, 4096); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", got[:5])
	// Output:
	// 1048576 bytes in blocks of 512
	// hello
}

// Send a command of your own, with a bound on the time that it may take. A context that ends aborts the
// command; the buffers are the caller's again as soon as Do returns.
func ExampleSession_Do() {
	address, stop := portal()
	defer stop()
	s, err := initiator.Open(context.Background(), &tcp.Dialer{}, address, "iqn.2026-01.com.example:disk", initiator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := initiator.Command{
		CDB: []byte{0x12, 0, 0, 0, 36, 0}, // INQUIRY
		In:  make([]byte, 36),
	}
	res, err := s.Do(ctx, c)
	if err != nil {
		log.Fatal(err) // the session, the context, or an answer that breaks the rules
	}
	if err := res.Err(); err != nil {
		log.Fatal(err) // a SCSI status, with its sense data in words
	}
	fmt.Println(res.Received, "bytes; device type", c.In[0]&0x1f)
	// Output: 36 bytes; device type 0
}

// Tell the kinds of errors apart.
func ExampleStatusError() {
	address, stop := portal()
	defer stop()
	ctx := context.Background()

	_, err := initiator.Open(ctx, &tcp.Dialer{}, address, "iqn.2026-01.com.example:nothing", initiator.Options{})
	if refused, ok := errors.AsType[*iscsi.LoginError](err); ok {
		fmt.Println("login:", refused.Status)
	}

	s, err := initiator.Open(ctx, &tcp.Dialer{}, address, "iqn.2026-01.com.example:disk", initiator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	_, err = s.Disk(ctx, iscsi.LUNFromNumber(9))
	if status, ok := errors.AsType[*initiator.StatusError](err); ok {
		fmt.Println("disk:", status)
	}
	// Output:
	// login: target not found
	// disk: CHECK CONDITION: illegal request, logical unit not supported (5/25/00)
}
