package web

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/metrics"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const diskName = "iqn.2026-01.example:disk"

// serveDisk serves a disk in memory by TCP, and returns the server and its address.
func serveDisk(t *testing.T) (*target.Server, string) {
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	require.NoError(t, err)
	s := target.New(target.Config{Pool: pool})
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: diskName})
	_, err = dev.Add(0, ram, scsi.LUConfig{ID: "disk"})
	require.NoError(t, err)
	_, err = s.AddTarget(target.TargetConfig{Name: diskName, Device: dev, Negotiate: iscsi.DefaultConfig()})
	require.NoError(t, err)
	l, err := tcp.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, s.Serve(l, target.PortalConfig{}))
	t.Cleanup(func() {
		assert.NoError(t, s.Shutdown(context.Background()))
		assert.NoError(t, pool.Close())
		assert.NoError(t, ram.Close())
	})
	return s, l.Addr().String()
}

// TestThePageUnderRealLoad: a real initiator reads and writes a real target, and what the browser shows moves; when it
// rests, so do the numbers.
func TestThePageUnderRealLoad(t *testing.T) {
	t.Parallel() // most of it is waiting
	s, addr := serveDisk(t)
	since := time.Now()
	srv := httptest.NewServer(Handler(Source{
		Snapshot: func() admin.Snapshot {
			st := s.Stats()
			snap := admin.Snapshot{
				Time: time.Now(), Since: since, Portals: []admin.Portal{{Address: addr}}, Stats: metrics.Stats(st),
				Buffers: admin.Buffers{TotalBytes: st.Buffers, FreeBytes: st.FreeBuffers},
				Targets: []admin.Target{}, Sessions: []admin.Session{}, Providers: []admin.Provider{},
			}
			for _, i := range s.Sessions() {
				snap.Sessions = append(snap.Sessions, admin.Session{
					ID: i.TSIH, Initiator: i.Initiator, Remote: i.Remote, Target: i.Target, Transport: i.Transport, Since: i.Since,
					Commands: i.Commands, ReadBytes: i.ReadBytes, WrittenBytes: i.WrittenBytes,
				})
			}
			return snap
		},
		Events: func(uint64) admin.Events { return admin.Events{Events: []admin.Event{}} },
	}))
	defer srv.Close()
	b := open(t, srv.URL+"/")

	ses, err := initiator.Open(b.ctx, &tcp.Dialer{}, addr, diskName, initiator.Options{InitiatorName: "iqn.2026-01.example:host"})
	require.NoError(t, err)
	defer func() { assert.NoError(t, ses.Close()) }()
	d, err := ses.Disk(b.ctx, 0)
	require.NoError(t, err)
	b.until(`document.getElementById("sessions").textContent.includes("iqn.2026-01.example:host")`)
	b.until(`document.getElementById("read-rate").textContent === "0 B/s"`)

	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for p := make([]byte, 4096); ; {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := d.WriteAt(b.ctx, p, 0); err != nil {
				stopped <- err
				return
			}
			if err := d.ReadAt(b.ctx, p, 4096); err != nil {
				stopped <- err
				return
			}
		}
	}()
	const moves = `["read-rate", "write-rate", "iops"].every((id) => !/^0 ?(B)?\/s$/.test(document.getElementById(id).textContent)) && document.getElementById("p99").textContent !== "–"`
	b.until(moves)
	line := get[string](b, `document.querySelector("#throughput path.read").getAttribute("d")`)
	assert.Contains(t, line, "L", "a line, not a point")
	b.until(`/[1-9]/.test(document.querySelector("#sessions tr").cells[8].textContent)`)
	b.shoot("web-load")
	close(stop)
	require.NoError(t, <-stopped)
	b.until(`document.getElementById("read-rate").textContent === "0 B/s" && document.getElementById("p99").textContent === "–"`)
	b.quiet(srv.URL)
}
