package main

import (
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// watch tells systemd twice in each WatchdogSec that we live (sd_watchdog_enabled(3)), until stop is called: each time
// after the server has answered, so that a lock that nobody lets go of ends in a restart and not in silence. Without a
// watchdog it does nothing.
func (s *service) watch() (stop func()) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.WithField("err", err).Warn("systemd's watchdog is not told that we live")
	}
	if interval <= 0 {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(interval/2, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.server.Sessions()
				s.notify(daemon.SdNotifyWatchdog)
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
