package admin

import (
	"strings"
	"time"
)

// API is the version of the API. Its number is in every path; a daemon answers those of others with an Error that says so.
const API = 1

// Bounds of what goes over the socket, in bytes.
const (
	MaxRequest  = 2 << 20  // a configuration is a request too
	MaxResponse = 64 << 20 // thousands of disks and sessions
)

// Header is the response header with the daemon's API version: without it, what answers is no iserd.
const Header = "Iserd-Api"

// Exit codes of the iser command, as an Error carries them.
const (
	CodeOther    = 1
	CodeUsage    = 2
	CodeNotFound = 3
	CodeDiffers  = 4 // exists, and is not what was asked for
	CodeInUse    = 5
	CodeRefused  = 6
	CodeConnect  = 7
	CodeTimeout  = 8
)

// An Error is what was not done: what, why, and what to do about it.
type Error struct {
	Message string `json:"error"` // why
	What    string `json:"what"`  // what was not done
	Todo    string `json:"todo"`  // perhaps empty
	Code    int    `json:"code"`  // an exit code
}

func (e *Error) Error() string {
	s := e.Message
	if e.What != "" {
		s = e.What + ": " + s
	}
	switch {
	case e.Todo == "":
	case strings.Contains(e.Message, "\n"): // lines with marks below them
		s += "\n" + e.Todo
	default:
		s += "; " + e.Todo
	}
	return s
}

// Version is the answer to /v1/version.
type Version struct {
	Version string `json:"version"` // of the daemon
	API     int    `json:"api"`
}

// Options go with every change, as the query's dry_run=1, force=1 and save=1.
type Options struct {
	DryRun bool // say what would be done, and do nothing
	Force  bool // although sessions lose what they use, or data what holds it
	Save   bool // write the configuration file afterwards
}

// A Step is one step of a change.
type Step struct {
	Action string `json:"action"`
	// Sessions are those that the step concerns: they are closed, or lose a disk.
	Sessions []string `json:"sessions"`
	Closes   bool     `json:"closes"`
}

// A Result is what has come of a change, or would.
type Result struct {
	Steps   []Step `json:"steps"` // none: everything was as it should be already
	Applied bool   `json:"applied"`
	Saved   bool   `json:"saved"`
	Unsaved bool   `json:"unsaved"` // the running configuration is not what the file has
}

// Requests. A field that is left out of a Set request stays as it is.
type (
	// TargetRequest makes a target.
	TargetRequest struct {
		Alias string `json:"alias,omitempty"`
	}
	// LUNRequest adds a logical unit. BlockSize is 512 (also 0) or 4096 bytes.
	LUNRequest struct {
		Backstore string `json:"backstore"`
		ReadOnly  bool   `json:"readonly,omitempty"`
		BlockSize int    `json:"block_size,omitempty"`
	}
	// LUNSetRequest changes one.
	LUNSetRequest struct {
		Backstore *string `json:"backstore,omitempty"`
		ReadOnly  *bool   `json:"readonly,omitempty"`
		BlockSize *int    `json:"block_size,omitempty"`
	}
	// BackstoreRequest makes a store.
	BackstoreRequest struct {
		Type    string            `json:"type"`
		Options map[string]string `json:"options"`
	}
	// BackstoreSetRequest changes options of a store; an empty value takes one away.
	BackstoreSetRequest struct {
		Options map[string]string `json:"options"`
	}
	// PortalRequest adds a portal. Provider is auto if it is empty, Group 1 if it is 0.
	PortalRequest struct {
		Provider  string `json:"provider,omitempty"`
		Group     int    `json:"group,omitempty"`
		Advertise string `json:"advertise,omitempty"`
		External  string `json:"external,omitempty"`
	}
	// AuthRequest says what initiators have to prove. A secret is a text, or in a file that the daemon can read.
	AuthRequest struct {
		Initiator        string `json:"initiator,omitempty"` // that it is for; empty: those without one of their own
		User             string `json:"user"`
		Secret           string `json:"secret,omitempty"`
		SecretFile       string `json:"secret_file,omitempty"`
		MutualUser       string `json:"mutual_user,omitempty"`
		MutualSecret     string `json:"mutual_secret,omitempty"`
		MutualSecretFile string `json:"mutual_secret_file,omitempty"`
	}
	// ApplyRequest has a whole configuration. Name is what its errors call it.
	ApplyRequest struct {
		Name string `json:"name"`
		YAML string `json:"yaml"`
	}
	// RollbackRequest names an entry of the history.
	RollbackRequest struct {
		N int `json:"n"`
	}
	// TraceRequest starts a capture of packets to a file that is not there yet; Limit is a size, or empty.
	TraceRequest struct {
		File  string `json:"file"`
		Limit string `json:"limit,omitempty"`
	}
)

// ConfigText is the running configuration as YAML, without secrets, or a difference.
type ConfigText struct {
	File    string `json:"file"`
	Unsaved bool   `json:"unsaved"`
	Text    string `json:"text"`
}

// A HistoryEntry is a configuration that was saved before; 1 is the last.
type HistoryEntry struct {
	N    int       `json:"n"`
	Time time.Time `json:"time"`
	File string    `json:"file"`
}

// LogLevels are levels by subsystem.
type LogLevels map[string]string

// Trace is the state of the capture of packets.
type Trace struct {
	Running bool   `json:"running"`
	File    string `json:"file,omitempty"`
	Note    string `json:"note,omitempty"`
}

// Acl is who may log in to a target.
type Acl struct {
	Target string   `json:"target"`
	Allow  []string `json:"allow"` // none: any initiator, from anywhere
}

// Fault is one fault that a store for tests has injected.
type Fault struct {
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Op       string    `json:"op"`
	Offset   int64     `json:"offset"` // bytes
	Length   int64     `json:"length"` // bytes
	Rule     string    `json:"rule"`
}
