package metrics

import (
	"math"
	"strconv"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/prometheus/client_golang/prometheus"
)

// A metric is a row of the table that /metrics and docs/METRICS.md are made of.
type metric struct {
	name, help string
	typ        prometheus.ValueType // 0: a histogram
	labels     []string
	// values yields the samples of a gauge or counter: the value, and of each label the value.
	values func(*admin.Snapshot, func(v float64, labels ...string))
	// histograms are a histogram's, by the only label's value.
	histograms func(*admin.Snapshot) map[string]admin.Histogram
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// one makes the values of a metric without labels.
func one(f func(*admin.Snapshot) float64) func(*admin.Snapshot, func(float64, ...string)) {
	return func(s *admin.Snapshot, emit func(float64, ...string)) { emit(f(s)) }
}

// byKey makes the values of a metric with one label.
func byKey(f func(*admin.Snapshot) map[string]uint64) func(*admin.Snapshot, func(float64, ...string)) {
	return func(s *admin.Snapshot, emit func(float64, ...string)) {
		for k, n := range f(s) {
			emit(float64(n), k)
		}
	}
}

// byLUN makes the values of a metric of each logical unit.
func byLUN(f func(*admin.LUN) float64) func(*admin.Snapshot, func(float64, ...string)) {
	return func(s *admin.Snapshot, emit func(float64, ...string)) {
		for i := range s.Targets {
			t := &s.Targets[i]
			for j := range t.LUNs {
				emit(f(&t.LUNs[j]), t.Name, strconv.Itoa(t.LUNs[j].Number))
			}
		}
	}
}

// rdma makes the values of a counter of our own RoCE, of all providers in use.
func rdma(name string) func(*admin.Snapshot, func(float64, ...string)) {
	return one(func(s *admin.Snapshot) float64 { return sumRDMA(s, name) })
}

// rdmaBoth is rdma for counters of two directions.
func rdmaBoth(sent, received string) func(*admin.Snapshot, func(float64, ...string)) {
	return func(s *admin.Snapshot, emit func(float64, ...string)) {
		emit(sumRDMA(s, sent), "sent")
		emit(sumRDMA(s, received), "received")
	}
}

func sumRDMA(s *admin.Snapshot, name string) float64 {
	n := uint64(0)
	for _, p := range s.Providers {
		n += p.Counters[name]
	}
	return float64(n)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	unit = []string{"target", "lun"}
	dir  = []string{"dir"}
	op   = []string{"op"}
)

// table has one row a metric.
func table() []metric {
	return append(append(serverTable(), unitTable()...), rdmaTable()...)
}

func serverTable() []metric {
	return []metric{
		{"iserd_info", "Always 1; the version is a label.", gauge, []string{"version"}, func(s *admin.Snapshot, emit func(float64, ...string)) { emit(1, s.Version) }, nil},
		{"iserd_start_time_seconds", "When iserd started, in seconds since 1970.", gauge, nil, one(func(s *admin.Snapshot) float64 {
			return math.Round(float64(s.Since.UnixMilli())) / 1000
		}), nil},
		{"iserd_config_unsaved", "1 if the running configuration is not what the file has.", gauge, nil, one(func(s *admin.Snapshot) float64 { return boolean(s.Config.Unsaved) }), nil},
		{"iserd_targets", "Targets that are served or disabled.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(len(s.Targets)) }), nil},
		{"iserd_portals", "Addresses that are listened on.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(len(s.Portals)) }), nil},
		{"iserd_sessions", "Sessions in full-feature phase, discovery sessions included, by transport (tcp or iser).", gauge, []string{"transport"}, sessions, nil},
		{"iserd_connections", "Connections, those that have not logged in included.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.Connections) }), nil},
		{"iserd_connections_ended_total", "Connections that ended in full-feature phase: logged out, closed by iserd, or lost.", counter, []string{"how"}, byKey(func(s *admin.Snapshot) map[string]uint64 { return s.Stats.Ended }), nil},
		{"iserd_logins_total", "Ends of login phases, by result; \"no login\": the connection ended before.", counter, []string{"result"}, byKey(func(s *admin.Snapshot) map[string]uint64 { return s.Stats.Logins }), nil},
		{"iserd_commands_total", "SCSI commands answered, by kind and status.", counter, []string{"op", "status"}, commands, nil},
		{"iserd_commands_aborted_total", "SCSI commands that ended without an answer: aborted, or their connection ended.", counter, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.Aborted) }), nil},
		{"iserd_bytes_total", "Bytes of data, by direction: read (sent to initiators) and write.", counter, dir, func(s *admin.Snapshot, emit func(float64, ...string)) {
			emit(float64(s.Stats.ReadBytes), "read")
			emit(float64(s.Stats.WrittenBytes), "write")
		}, nil},
		{"iserd_command_seconds", "How long commands took, from their arrival until their answer had left: over TCP to the kernel, over iSER acknowledged by the initiator's device.", 0, op, nil, func(s *admin.Snapshot) map[string]admin.Histogram { return s.Stats.Latency }},
		{"iserd_inflight", "Commands that have come and whose answer has not left.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.InFlight) }), nil},
		{"iserd_queue_full_total", "Commands answered TASK SET FULL.", counter, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.QueueFull) }), nil},
		{"iserd_sense_total", "Commands answered CHECK CONDITION, by sense key.", counter, []string{"key"}, byKey(func(s *admin.Snapshot) map[string]uint64 { return s.Stats.Sense }), nil},
		{"iserd_rejects_total", "PDUs rejected, by reason.", counter, []string{"reason"}, byKey(func(s *admin.Snapshot) map[string]uint64 { return s.Stats.Rejects }), nil},
		{"iserd_requests_dropped_total", "Requests outside the command window, and duplicates.", counter, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.Dropped) }), nil},
		{"iserd_task_management_total", "Task management functions answered, by function and result.", counter, []string{"function", "result"}, functions, nil},
		{"iserd_backstore_seconds", "How long stores that may block worked for commands; stores in memory are not in it.", 0, op, nil, func(s *admin.Snapshot) map[string]admin.Histogram { return s.Stats.Backstore }},
		{"iserd_backstore_working", "Commands that stores which may block work on.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.Working) }), nil},
		{"iserd_backstore_workers", "How many may be worked on at once, besides one of each unit.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Stats.Workers) }), nil},
		{"iserd_buffers_bytes", "Memory for the data of commands.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Buffers.TotalBytes) }), nil},
		{"iserd_buffers_free_bytes", "What of it is neither in use nor set aside for a session.", gauge, nil, one(func(s *admin.Snapshot) float64 { return float64(s.Buffers.FreeBytes) }), nil},
	}
}

func unitTable() []metric {
	return []metric{
		{"iserd_lun_size_bytes", "Size of a logical unit.", gauge, unit, byLUN(func(l *admin.LUN) float64 { return float64(l.SizeBytes) }), nil},
		{"iserd_lun_commands_total", "Commands of a logical unit.", counter, unit, byLUN(func(l *admin.LUN) float64 { return float64(l.Commands) }), nil},
		{"iserd_lun_read_bytes_total", "Bytes read from a logical unit.", counter, unit, byLUN(func(l *admin.LUN) float64 { return float64(l.ReadBytes) }), nil},
		{"iserd_lun_written_bytes_total", "Bytes written to a logical unit.", counter, unit, byLUN(func(l *admin.LUN) float64 { return float64(l.WrittenBytes) }), nil},
		{"iserd_lun_errors_total", "Commands of a logical unit answered CHECK CONDITION.", counter, unit, byLUN(func(l *admin.LUN) float64 { return float64(l.Errors) }), nil},
	}
}

// rdmaTable is of our own RoCE; of an RDMA device's counters the kernel tells.
func rdmaTable() []metric {
	return []metric{
		{"iserd_rdma_packets_total", "Packets of our own RoCE, by direction.", counter, dir, rdmaBoth("sent_packets", "received_packets"), nil},
		{"iserd_rdma_bytes_total", "Bytes of packets of our own RoCE, by direction.", counter, dir, rdmaBoth("sent_bytes", "received_bytes"), nil},
		{"iserd_rdma_retransmits_total", "Packets sent again.", counter, nil, rdma("retransmits"), nil},
		{"iserd_rdma_timeouts_total", "Times that no acknowledgement came in time.", counter, nil, rdma("timeouts"), nil},
		{"iserd_rdma_out_of_order_total", "Packets that came before their turn: one before them is missing.", counter, nil, rdma("out_of_order"), nil},
		{"iserd_rdma_duplicates_total", "Requests that came again.", counter, nil, rdma("duplicates"), nil},
		{"iserd_rdma_icrc_errors_total", "Packets with a wrong invariant CRC.", counter, nil, rdma("icrc_errors"), nil},
		{"iserd_rdma_naks_total", "Negative acknowledgements, by direction; those for want of a receive buffer are not in it.", counter, dir, rdmaBoth("naks_sent", "naks_received"), nil},
		{"iserd_rdma_rnr_naks_total", "Negative acknowledgements for want of a receive buffer, by direction.", counter, dir, rdmaBoth("rnr_naks_sent", "rnr_naks_received"), nil},
		{"iserd_rdma_malformed_total", "Packets that are none of RoCE's.", counter, nil, rdma("malformed"), nil},
		{"iserd_rdma_unexpected_total", "Packets to no queue pair, from another peer than its own, or that no rule lets in.", counter, nil, rdma("unexpected"), nil},
		{"iserd_rdma_cm_refused_total", "Connection requests refused without asking anybody: too many, or to no service.", counter, nil, rdma("cm_refused"), nil},
		{"iserd_rdma_send_dropped_total", "Packets that the system did not take.", counter, nil, rdma("send_dropped"), nil},
		{"iserd_rdma_receive_dropped_total", "Datagrams that found no room in the receive buffer of the socket.", counter, nil, rdma("receive_dropped"), nil},
		{"iserd_rdma_qps", "Queue pairs in use.", gauge, nil, rdma("qps"), nil},
		{"iserd_rdma_mrs", "Keys to memory in use: of regions and of windows.", gauge, nil, rdma("mrs"), nil},
	}
}

// sessions counts by transport. Both are always there, so that no sessions are seen as none.
func sessions(s *admin.Snapshot, emit func(float64, ...string)) {
	n := map[string]int{"tcp": 0, "iser": 0}
	for i := range s.Sessions {
		n[s.Sessions[i].Transport]++
	}
	for transport, n := range n {
		emit(float64(n), transport)
	}
}

func commands(s *admin.Snapshot, emit func(float64, ...string)) {
	for _, c := range s.Stats.Commands {
		emit(float64(c.Count), c.Op, c.Status)
	}
}

func functions(s *admin.Snapshot, emit func(float64, ...string)) {
	for _, f := range s.Stats.TaskManagement {
		emit(float64(f.Count), f.Function, f.Result)
	}
}
