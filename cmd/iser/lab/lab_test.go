package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var seedsFlag = flag.Uint64("seeds", defaultSeeds, "run every scenario with so many seeds")

// Every scenario is clean, and every negative control is caught, whatever the seed.
func TestScenarios(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			names := []string{NoControl}
			for _, c := range s.Controls {
				if !underRace || !c.races {
					names = append(names, c.Name)
				}
			}
			for _, name := range names {
				all, err := Run(t.Context(), Options{Scenarios: []*Scenario{s}, Seed: 1, Seeds: *seedsFlag, Control: name})
				require.NoError(t, err)
				require.Len(t, all, 1)
				assert.Equal(t, all[0].Runs, all[0].Good, "control %q: %+v", name, all[0].Bad)
				assert.Equal(t, *seedsFlag, all[0].Runs)
			}
		})
	}
}

// The page of a scenario begins with its name and title, names its controls, and fits a page.
func TestPages(t *testing.T) {
	for _, s := range Scenarios() {
		page := s.Explain()
		lines := strings.Split(page, "\n")
		assert.True(t, strings.HasPrefix(lines[0], s.Name+": "), lines[0])
		assert.LessOrEqual(t, len(lines), 45, s.Name)
		for _, heading := range []string{"In the field", "On the wire", "The rule", "What the checker looks at"} {
			assert.Contains(t, lines, heading, s.Name)
		}
		require.NotEmpty(t, s.Controls, s.Name)
		for _, c := range s.Controls {
			assert.Contains(t, page, c.Name, s.Name)
			assert.NotEmpty(t, c.Breaks)
			assert.Same(t, s, mustFind(t, s))
		}
	}
}

func mustFind(t *testing.T, s *Scenario) *Scenario {
	require.NotNil(t, Find(s.Name))
	assert.Equal(t, s.Title, Find(s.Name).Title)
	assert.Nil(t, Find(s.Name+"x"))
	return s
}

// The same seed brings the same time line back. What the scheduler decides by itself may change it: so not always, and
// under the race detector seldom.
func TestSeedDecides(t *testing.T) {
	if underRace {
		t.Skip("the race detector has goroutines run in random order")
	}
	b := newBench()
	defer b.close()
	runs, same := 0, 0
	for _, s := range Scenarios() {
		for seed := range uint64(2) {
			first, again := b.one(s, nil, seed, true), b.one(s, nil, seed, true)
			require.NotEmpty(t, first.Events)
			if runs++; assert.ObjectsAreEqual(first.Events, again.Events) {
				same++
			}
		}
	}
	t.Logf("%d of %d time lines are the same again", same, runs)
	assert.Greater(t, same, runs/2)
}

// A bubble's time is its own, and passes when all wait.
func TestBubble(t *testing.T) {
	b := newBench()
	defer b.close()
	for range 2 * collectEvery {
		var passed time.Duration
		b.run(func() {
			began := time.Now()
			time.Sleep(1000 * time.Hour)
			passed = time.Since(began)
		})
		require.Equal(t, 1000*time.Hour, passed)
	}
}

// timeLine is the clean run of a scenario, recorded.
func timeLine(name, control string) Result {
	b := newBench()
	defer b.close()
	s := Find(name)
	return b.one(s, s.control(control), 2, true)
}

// A time line has the steps of both ends in the order of cause and effect.
func TestTimeLineOrder(t *testing.T) {
	r := timeLine("lost-send-ack", "")
	require.Empty(t, r.Wrongs)
	var write, placed, delivered, sends int
	last := time.Duration(0)
	for i, e := range r.Events {
		require.GreaterOrEqual(t, e.At, last)
		last = e.At
		switch {
		case e.Where == "target" && e.What == "posted" && e.Of == "RDMA Write" && write == 0:
			write = i
		case e.Where == "host 0" && e.What == whatPlaced && e.Key == r.Events[write].Key && placed == 0:
			placed = i
			assert.Equal(t, r.Events[write].Addr, e.Addr)
			assert.Equal(t, r.Events[write].Length, e.Length)
			assert.Equal(t, r.Events[write].Word, e.Word)
		case e.Where == "host 0" && e.What == "delivered" && placed > 0 && delivered == 0:
			delivered = i
		case e.What == whatSent && e.Note == "lost":
			sends++
		}
	}
	assert.NotZero(t, write)
	assert.Less(t, write, placed)
	assert.Less(t, placed, delivered)
	assert.NotZero(t, sends, "the acknowledgements that are lost")
}

func TestText(t *testing.T) {
	r := timeLine("write-then-send", "")
	r.Unrecorded = 3
	var b bytes.Buffer
	require.NoError(t, r.Text(&b))
	text := b.String()
	for _, want := range []string{"calls", "posted", "completed", "delivered", "placed", "bound", "invalidated", "returns", "packets", "first word", "3 more events"} {
		assert.Contains(t, text, want)
	}
	assert.ErrorIs(t, r.Text(broken{}), errBroken)
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// The diagram is well-formed XML with a lifeline for each end, and shows what was lost and what was wrong.
func TestSVG(t *testing.T) {
	r := timeLine("lost-send-ack", "memory-reused")
	require.True(t, r.Good, "%v", r.Wrongs)
	var b bytes.Buffer
	require.NoError(t, r.SVG(&b))
	text := b.String()
	for d := xml.NewDecoder(&b); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, want := range []string{">host 0<", ">target<", "checker: ", "control memory-reused", "#c00"} {
		assert.Contains(t, text, want)
	}
	assert.ErrorIs(t, r.SVG(broken{}), errBroken)
}

func TestJSON(t *testing.T) {
	r := timeLine("inline-key", "key-sent")
	b, err := json.Marshal(r)
	require.NoError(t, err)
	var back Result
	require.NoError(t, json.Unmarshal(b, &back))
	r.sight = ""
	assert.Equal(t, r, back)
}

// A time line has a bound, and says what is missing.
func TestRecorderIsBounded(t *testing.T) {
	r := &recorder{}
	r.add(Event{}) // before it has begun
	assert.Empty(t, r.events)
	r.start()
	for range maxEvents + 5 {
		r.add(Event{})
	}
	assert.Len(t, r.events, maxEvents)
	assert.Equal(t, 5, r.lost)
	var none *recorder
	none.start()
	none.add(Event{})
}

func TestRunStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := Run(ctx, Options{Scenarios: Scenarios()[:1], Seeds: 1})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Run(t.Context(), Options{Scenarios: Scenarios()[:1], Seeds: 1, Control: "other"})
	require.ErrorContains(t, err, `no control "other"`)
}

// A scenario that is not clean is told as such, with what was seen; with FailFast it is the last.
func TestRunTellsWhatIsNotGood(t *testing.T) {
	s := bitFlip()
	s.run = func(_ context.Context, w *world) { w.fail("as planned") }
	o := Options{Scenarios: []*Scenario{s, inlineKey()}, Seed: 7, Seeds: 3, Control: NoControl}
	all, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Zero(t, all[0].Good)
	require.NotNil(t, all[0].Bad)
	assert.Equal(t, uint64(7), all[0].Bad.Seed)
	assert.Equal(t, []string{"as planned"}, all[0].Bad.Wrongs)
	assert.Equal(t, uint64(3), all[1].Good)

	o.FailFast = true
	all, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, uint64(1), all[0].Runs)
}
