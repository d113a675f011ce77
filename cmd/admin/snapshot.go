package admin

import "time"

// A Snapshot is what a daemon is at one moment: the one description that status, statistics, metrics and pages are
// made of. Its lists are never nil.
type Snapshot struct {
	Time    time.Time `json:"time"`
	Since   time.Time `json:"since"` // of the start
	Version string    `json:"version"`
	Config  Config    `json:"config"`

	Portals    []Portal    `json:"portals"`
	Backstores []Backstore `json:"backstores"`
	Targets    []Target    `json:"targets"` // by name
	Sessions   []Session   `json:"sessions"`
	Providers  []Provider  `json:"providers"`
	Buffers    Buffers     `json:"buffers"`
	Stats      Stats       `json:"stats"`
}

// Config is how the running configuration stands to its file.
type Config struct {
	File     string    `json:"file"`    // empty: there is none
	Unsaved  bool      `json:"unsaved"` // what runs is not what the file had when it was last read or written
	Changed  time.Time `json:"changed"` // last; at first: the start
	Warnings []string  `json:"warnings"`
	// Trouble is what a change that could not be undone has left behind; empty: nothing.
	Trouble string `json:"trouble,omitempty"`
}

// Portal is an address that is listened on.
type Portal struct {
	Listen    string `json:"listen"`              // as configured
	Address   string `json:"address"`             // as it is: the port may have been chosen
	Provider  string `json:"provider"`            // as configured
	RDMA      string `json:"rdma"`                // provider of iSER here: "verbs", "roce"; empty: TCP only
	Group     int    `json:"group"`               // tag of the portal group
	Advertise string `json:"advertise,omitempty"` // what discovery answers instead
	External  string `json:"external,omitempty"`
	Sessions  int    `json:"sessions"`
}

// Backstore is a store.
type Backstore struct {
	Name       string            `json:"name"`
	Type       string            `json:"type"`
	Options    map[string]string `json:"options"`
	SizeBytes  int64             `json:"size_bytes"`
	ReadOnly   bool              `json:"readonly"`
	Volatile   bool              `json:"volatile"`    // nothing survives the daemon
	WriteCache bool              `json:"write_cache"` // writes are durable after a flush only
	UsedBy     []string          `json:"used_by"`     // IQN/LUN, or the name of the store that wraps it
}

// Target is an iSCSI target.
type Target struct {
	Name     string   `json:"name"`
	Alias    string   `json:"alias,omitempty"`
	Enabled  bool     `json:"enabled"`
	Groups   []int    `json:"groups,omitempty"` // portal groups; none: all
	Redirect string   `json:"redirect,omitempty"`
	Auth     string   `json:"auth"` // CHAP user of initiators without one of their own; empty: none
	Allow    []string `json:"allow"`
	LUNs     []LUN    `json:"luns"`
	Sessions int      `json:"sessions"`
}

// LUN is a logical unit. The counters are since it was added.
type LUN struct {
	Number       int    `json:"number"`
	Backstore    string `json:"backstore"`
	SizeBytes    int64  `json:"size_bytes"`
	BlockSize    int    `json:"block_size"`
	ReadOnly     bool   `json:"readonly"`
	Commands     uint64 `json:"commands"`
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
	Errors       uint64 `json:"errors"`
}

// Session is a session in full-feature phase. The counters are since the login.
type Session struct {
	ID           uint16            `json:"id"` // TSIH
	Initiator    string            `json:"initiator"`
	Target       string            `json:"target"` // empty: discovery
	Transport    string            `json:"transport"`
	Remote       string            `json:"remote"`
	Portal       string            `json:"portal"` // the address that its oldest connection has come to
	Connections  int               `json:"connections"`
	Since        time.Time         `json:"since"`
	Keys         map[string]string `json:"keys"`      // as negotiated (RFC 7143, 13)
	Commands     uint64            `json:"commands"`  // answered
	InFlight     int               `json:"in_flight"` // whose answer has not left
	ReadBytes    uint64            `json:"read_bytes"`
	WrittenBytes uint64            `json:"written_bytes"`
	Errors       uint64            `json:"errors"`
	Rejects      uint64            `json:"rejects"`
	Dropped      uint64            `json:"dropped"` // requests outside the command window and duplicates
	// QueuePair are the counters of its queue pair, by our own RoCE only.
	QueuePair *QueuePair `json:"queue_pair,omitempty"`
}

// Provider is an RDMA provider in use.
type Provider struct {
	Name       string            `json:"name"`     // as configured
	Used       string            `json:"used"`     // "verbs" or "roce"
	Counters   map[string]uint64 `json:"counters"` // of our own RoCE, of all that there has been
	QueuePairs int               `json:"queue_pairs"`
}

// QueuePair is a queue pair of our own RoCE.
type QueuePair struct {
	Number   uint32            `json:"number"`
	Local    string            `json:"local"`
	Remote   string            `json:"remote"`
	Counters map[string]uint64 `json:"counters"`
}

// Buffers is the memory for the data of commands.
type Buffers struct {
	TotalBytes int64 `json:"total_bytes"`
	FreeBytes  int64 `json:"free_bytes"`
}
