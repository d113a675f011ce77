package admin

// Stats are the counters of all sessions that there have been since the start, and what goes on now.
type Stats struct {
	Commands     []Commands `json:"commands"` // answered, by op and status
	Aborted      uint64     `json:"aborted"`  // commands that ended without an answer
	InFlight     int        `json:"in_flight"`
	ReadBytes    uint64     `json:"read_bytes"`
	WrittenBytes uint64     `json:"written_bytes"`
	// Latency is how long commands took, from their arrival until the answer had left; Backstore how long stores that may
	// block worked for them. By op, and only those that there have been.
	Latency   map[string]Histogram `json:"latency"`
	Backstore map[string]Histogram `json:"backstore"`

	QueueFull uint64            `json:"queue_full"` // commands answered TASK SET FULL
	Sense     map[string]uint64 `json:"sense"`      // CHECK CONDITIONs by sense key, in words
	Dropped   uint64            `json:"dropped"`    // requests outside the command window and duplicates
	Rejects   map[string]uint64 `json:"rejects"`    // PDUs rejected, by reason
	Logins    map[string]uint64 `json:"logins"`     // by result; "no login": the connection ended before
	// TaskManagement are the functions asked for.
	TaskManagement []Functions `json:"task_management"`
	// Ended are connections that ended in full-feature phase: "logged out", "closed" by us, "lost".
	Ended       map[string]uint64 `json:"ended"`
	Connections int               `json:"connections"`
	// Working are commands at work on stores that may block, of Workers that may be at once.
	Working int `json:"working"`
	Workers int `json:"workers"`
}

// Commands are commands of one kind with one answer.
type Commands struct {
	Op     string `json:"op"`
	Status string `json:"status"` // as SAM-5 calls it, lower case
	Count  uint64 `json:"count"`
}

// Functions are task management functions of one kind with one answer.
type Functions struct {
	Function string `json:"function"`
	Result   string `json:"result"`
	Count    uint64 `json:"count"`
}

// A Histogram is durations.
type Histogram struct {
	Count      uint64   `json:"count"`
	SumSeconds float64  `json:"sum_seconds"`
	Buckets    []Bucket `json:"buckets"` // by duration; empty ones are left out
}

// Bucket is how many durations there were from one on, up to UpToSeconds, which was not reached. 0: without end.
type Bucket struct {
	FromSeconds float64 `json:"from_seconds"`
	UpToSeconds float64 `json:"up_to_seconds"`
	Count       uint64  `json:"count"`
}
