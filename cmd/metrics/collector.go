package metrics

import (
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of the histograms that Prometheus gets: each power of two microseconds from firstBound to lastBound. They are
// bounds of the finer buckets inside, so that the numbers are exact.
const (
	firstBound = 4 * time.Microsecond
	lastBound  = time.Microsecond << 24 // 16.8 s
)

// A collector turns a snapshot into metrics whenever they are asked for.
type collector struct {
	snapshot func() admin.Snapshot
	rows     []metric
	descs    []*prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(snapshot func() admin.Snapshot) *collector {
	c := &collector{snapshot: snapshot, rows: table()}
	for i := range c.rows {
		r := &c.rows[i]
		c.descs = append(c.descs, prometheus.NewDesc(r.name, r.help, r.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.snapshot()
	for i := range c.rows {
		r, d := &c.rows[i], c.descs[i]
		if r.histograms != nil {
			for name, h := range r.histograms(&s) {
				ch <- prometheus.MustNewConstHistogram(d, h.Count, h.SumSeconds, cumulative(&h), name)
			}
			continue
		}
		r.values(&s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, r.typ, v, labels...)
		})
	}
}

// cumulative is a histogram as Prometheus wants it: how many durations lie below each bound.
func cumulative(h *admin.Histogram) map[float64]uint64 {
	sums := map[float64]uint64{}
	n, i := uint64(0), 0
	for bound := firstBound; bound <= lastBound; bound *= 2 {
		le := bound.Seconds()
		for i < len(h.Buckets) && h.Buckets[i].UpToSeconds > 0 && h.Buckets[i].UpToSeconds <= le {
			n += h.Buckets[i].Count
			i++
		}
		sums[le] = n
	}
	return sums
}
