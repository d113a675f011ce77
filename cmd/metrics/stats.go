package metrics

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/scsi"
)

// Stats says a server's counters in words.
func Stats(s target.Stats) admin.Stats {
	a := admin.Stats{
		Commands: []admin.Commands{}, Aborted: s.Aborted, InFlight: s.InFlight, ReadBytes: s.ReadBytes, WrittenBytes: s.WrittenBytes,
		Latency: histograms(&s.Latency), Backstore: histograms(&s.Store),
		Sense: map[string]uint64{}, Dropped: s.Dropped, Rejects: map[string]uint64{}, Logins: map[string]uint64{},
		TaskManagement: []admin.Functions{},
		Ended:          map[string]uint64{"logged out": s.LoggedOut, "closed": s.Closed, "lost": s.Lost},
		Connections:    s.Connections, Working: s.Working, Workers: s.Workers,
	}
	for c, byStatus := range s.Commands {
		for status, n := range byStatus {
			a.Commands = append(a.Commands, admin.Commands{Op: scsi.Class(c).String(), Status: statusName(status), Count: n})
		}
		a.QueueFull += byStatus[scsi.TaskSetFull]
	}
	slices.SortFunc(a.Commands, func(x, y admin.Commands) int {
		return cmp.Or(cmp.Compare(x.Op, y.Op), cmp.Compare(x.Status, y.Status))
	})
	for key, n := range s.Sense {
		if n > 0 {
			a.Sense[senseKeys[key]] = n
		}
	}
	for reason, n := range s.Rejects {
		a.Rejects[reason.String()] = n
	}
	for status, n := range s.Logins {
		a.Logins[status.String()] += n // codes that have no words of their own share some
	}
	if s.NoLogin > 0 {
		a.Logins["no login"] = s.NoLogin
	}
	for f, n := range s.Functions {
		a.TaskManagement = append(a.TaskManagement, admin.Functions{Function: f.Function.String(), Result: f.Response.String(), Count: n})
	}
	slices.SortFunc(a.TaskManagement, func(x, y admin.Functions) int {
		return cmp.Or(cmp.Compare(x.Function, y.Function), cmp.Compare(x.Result, y.Result))
	})
	return a
}

func histograms(byClass *[scsi.Classes]target.Latency) map[string]admin.Histogram {
	all := map[string]admin.Histogram{}
	for c := range byClass {
		l := &byClass[c]
		h := admin.Histogram{Count: l.Count(), SumSeconds: l.Sum.Seconds(), Buckets: []admin.Bucket{}}
		if h.Count == 0 {
			continue
		}
		from := time.Duration(0)
		for i, n := range l.Buckets {
			bound := target.LatencyBound(i)
			if n > 0 {
				h.Buckets = append(h.Buckets, admin.Bucket{FromSeconds: from.Seconds(), UpToSeconds: bound.Seconds(), Count: n})
			}
			from = bound
		}
		all[scsi.Class(c).String()] = h
	}
	return all
}

// statusName is what SAM-5, 5.3.1 calls a status, in lower case.
func statusName(s scsi.Status) string {
	switch s {
	case scsi.Good:
		return "good"
	case scsi.CheckCondition:
		return "check condition"
	case scsi.ConditionMet:
		return "condition met"
	case scsi.Busy:
		return "busy"
	case scsi.ReservationConflict:
		return "reservation conflict"
	case scsi.TaskSetFull:
		return "task set full"
	case scsi.ACAActive:
		return "aca active"
	case scsi.TaskAborted:
		return "task aborted"
	}
	return fmt.Sprintf("status %02x", uint8(s))
}

// senseKeys are the words of SPC-4, 4.5.6, in lower case.
var senseKeys = [16]string{
	"no sense", "recovered error", "not ready", "medium error", "hardware error", "illegal request", "unit attention", "data protect",
	"blank check", "vendor specific", "copy aborted", "aborted command", "reserved", "volume overflow", "miscompare", "completed",
}

// RDMA gives our own RoCE's counters their names. "qps" and "mrs" are how many queue pairs, and keys to memory, are in use
// now; all others only grow.
func RDMA(p *roce.Provider) map[string]uint64 {
	c := p.Counters()
	return map[string]uint64{
		"sent_packets": c.Link.SentPackets, "received_packets": c.Link.ReceivedPackets,
		"sent_bytes": c.Link.SentBytes, "received_bytes": c.Link.ReceivedBytes,
		"send_dropped": c.Link.SendDropped, "receive_dropped": c.Link.ReceiveDropped,
		"retransmits": c.QP.Retransmits, "timeouts": c.QP.Timeouts,
		"duplicates": c.QP.Duplicates, "out_of_order": c.QP.OutOfOrder,
		"naks_sent": c.QP.NaksSent, "naks_received": c.QP.NaksReceived,
		"rnr_naks_sent": c.QP.RNRNaksSent, "rnr_naks_received": c.QP.RNRNaksReceived,
		"icrc_errors": c.BadICRC,
		"malformed":   c.Malformed + c.BadMAD + c.CM.Malformed,
		"unexpected":  c.UnknownQP + c.WrongPeer + c.NotReady + c.QP.Dropped,
		"cm_refused":  c.CM.Flooded + c.CM.Refused,
		"qps":         uint64(len(p.QueuePairs())), "mrs": uint64(p.Keys()),
	}
}
