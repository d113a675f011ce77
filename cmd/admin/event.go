package admin

import "time"

// An Event is something that has happened: a login, a session lost, a change of the configuration. It is a line of the
// log, at level info or above.
type Event struct {
	// Seq numbers events from 1 on, without gaps, since the start of the daemon.
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // info, warning or error
	Kind    string    `json:"kind"`  // login, logout, session_lost, config, store_error...; "log": no kind of its own
	Message string    `json:"message"`
	// What it is about; empty: nothing of that sort.
	Session   string `json:"session,omitempty"`
	Initiator string `json:"initiator,omitempty"`
	Target    string `json:"target,omitempty"`
	LUN       string `json:"lun,omitempty"`
	Error     string `json:"error,omitempty"`
}

// Events are those after one number.
type Events struct {
	Events []Event `json:"events"` // oldest first
	// Missed is how many have been forgotten that were asked for: only the last ones are kept.
	Missed uint64 `json:"missed"`
	// Next is what to ask for next: the number of the last event that there has been.
	Next uint64 `json:"next"`
}
