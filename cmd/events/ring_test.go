package events

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newLog(n int) (*logrus.Logger, *Ring) {
	r := New(n)
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetLevel(logrus.DebugLevel)
	log.AddHook(r)
	return log, r
}

func messages(e admin.Events) (list []string) {
	for _, e := range e.Events {
		list = append(list, e.Message)
	}
	return list
}

func TestALineIsAnEvent(t *testing.T) {
	log, r := newLog(10)
	before := time.Now()
	log.WithFields(logrus.Fields{
		"event": "session_lost", "session": uint16(3), "initiator": "iqn.a", "target": "iqn.b", "lun": 4, "err": errors.New("cable"), "itt": 9,
	}).Warn("session failed")
	log.Debug("not one")
	log.Info("plain")
	got := r.Since(0)
	require.Len(t, got.Events, 2)
	assert.WithinRange(t, got.Events[0].Time, before, time.Now())
	got.Events[0].Time, got.Events[1].Time = time.Time{}, time.Time{}
	assert.Equal(t, admin.Events{Next: 2, Events: []admin.Event{
		{Seq: 1, Level: "warning", Kind: "session_lost", Message: "session failed", Session: "3", Initiator: "iqn.a", Target: "iqn.b", LUN: "4", Error: "cable"},
		{Seq: 2, Level: "info", Kind: "log", Message: "plain"},
	}}, got)
}

// TestTheOldestGo: the ring is bounded, and says how many of those asked for it has forgotten.
func TestTheOldestGo(t *testing.T) {
	log, r := newLog(3)
	assert.Equal(t, admin.Events{Events: []admin.Event{}}, r.Since(0))
	for _, m := range []string{"a", "b", "c", "d", "e"} {
		log.Info(m)
	}
	for _, c := range []struct {
		since, missed uint64
		want          []string
	}{
		{0, 2, []string{"c", "d", "e"}},
		{1, 1, []string{"c", "d", "e"}},
		{2, 0, []string{"c", "d", "e"}},
		{4, 0, []string{"e"}},
		{5, 0, nil},
		{6, 2, []string{"c", "d", "e"}}, // of a daemon that ran before
	} {
		got := r.Since(c.since)
		assert.Equal(t, c.want, messages(got), "since %d", c.since)
		assert.Equal(t, c.missed, got.Missed, "since %d", c.since)
		assert.EqualValues(t, 5, got.Next)
	}
}

// TestTextsAreBounded, in whole characters.
func TestTextsAreBounded(t *testing.T) {
	log, r := newLog(1)
	log.WithField("initiator", strings.Repeat("é", maxText)).Info(strings.Repeat("x", maxText+1))
	e := r.Since(0).Events[0]
	assert.Equal(t, strings.Repeat("x", maxText)+"…", e.Message)
	assert.Equal(t, strings.Repeat("é", maxText/2)+"…", e.Initiator)
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := newLog(5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { assert.Equal(t, []string{"a"}, messages(r.Wait(ctx, 0))) })
		}
		synctest.Wait()
		log.Info("a")
		wg.Wait()
		assert.Equal(t, []string{"a"}, messages(r.Wait(ctx, 0)), "it is there already")
		begun := time.Now()
		assert.Empty(t, r.Wait(ctx, 1).Events)
		assert.Equal(t, time.Minute, time.Since(begun), "nothing has come until the deadline")
		assert.Equal(t, []string{"a"}, messages(r.Wait(ctx, 7)), "of a daemon that ran before")
	})
}

func TestManyAtOnce(t *testing.T) {
	log, r := newLog(64)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				log.Info("x")
			}
		})
	}
	for seq := uint64(0); seq < 400; {
		got := r.Wait(t.Context(), seq)
		assert.Equal(t, got.Next-seq, got.Missed+uint64(len(got.Events)))
		seq = got.Next
	}
	wg.Wait()
}
