package initiator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/scsi"
)

// portal serves a RAM disk for the examples, which would otherwise need an address of yours.
func portal() (address string, stop func()) {
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
	if _, err = s.AddTarget(target.TargetConfig{Name: "iqn.2026-01.com.example:disk", Device: dev, Negotiate: iscsi.DefaultConfig()}); err != nil {
		log.Fatal(err)
	}
	l, err := tcp.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	if err = s.Serve(l, target.PortalConfig{}); err != nil {
		log.Fatal(err)
	}
	return l.Addr().String(), func() {
		_ = s.Shutdown(context.Background())
		_ = pool.Close()
		_ = ram.Close()
	}
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
