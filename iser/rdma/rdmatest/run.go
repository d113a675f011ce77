package rdmatest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// quiet is how long a test watches that nothing comes.
const quiet = 20 * time.Millisecond

// A suite is a provider under test.
type suite struct {
	p    rdma.Provider
	addr func() netip.AddrPort
}

// Run tests p. addr gives the address to listen at, with port 0 if the provider may choose.
func Run(t *testing.T, p rdma.Provider, addr func() netip.AddrPort) {
	s := &suite{p: p, addr: addr}
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"connect", s.connectTests()},
		{"messages", s.messageTests()},
		{"memory", s.memoryTests()},
		{"errors", s.errorTests()},
		{"windows", s.windowTests()},
		{"queues", s.queueTests()},
		{"ends", s.endTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.tests {
				t.Run(c.name, c.run)
			}
		})
	}
}

// A test's name is the claim it makes.
type test struct {
	name string
	run  func(t *testing.T)
}

// pair is a connection made as usual.
func (s *suite) pair(t *testing.T, c Config) (a, b *End) { return Connect(t, s.p, s.addr(), c) }

// listen opens a listener for the length of the test.
func (s *suite) listen(t *testing.T) rdma.Listener {
	l, err := s.p.Listen(s.addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// soon is a context with the suite's patience.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// dial resolves addr and makes an end for it.
func (s *suite) dial(t *testing.T, addr netip.AddrPort) *End {
	ep, err := s.p.Resolve(soon(t), addr)
	require.NoError(t, err)
	e := NewEnd(t, ep, Config{})
	t.Cleanup(e.Close)
	return e
}
