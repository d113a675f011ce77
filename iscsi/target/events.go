package target

import (
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// Events are log lines with a field "event" that says of what kind, for those who read them by machine.
const (
	eventLogin            = "login"
	eventLoginRefused     = "login_refused"
	eventNoLogin          = "no_login"
	eventLogout           = "logout"
	eventSessionClosed    = "session_closed"
	eventSessionLost      = "session_lost"
	eventConnectionClosed = "connection_closed"
	eventTaskManagement   = "task_management"
	eventReject           = "reject"
	eventStoreError       = "store_error"
	eventInternalError    = "internal_error"
)

// logEvent begins the log line of an event.
func (c *conn) logEvent(kind string) *logrus.Entry { return c.log.WithField("event", kind) }

// Sense keys (SPC-4, 4.5.6) of a store that has failed.
const (
	senseMediumError   = 0x3
	senseHardwareError = 0x4
)

// countSense counts a CHECK CONDITION by its sense key, and tells of a store that has failed.
func (c *conn) countSense(t *task, sense []byte) {
	key, asc, ascq := scsi.ParseSense(sense)
	c.ses.stats.sense[key].Add(1)
	if key != senseMediumError && key != senseHardwareError || !c.s.faults.allow(c.now) {
		return
	}
	c.logEvent(eventStoreError).WithFields(logrus.Fields{"lun": t.transfer.LUN, "itt": t.transfer.ITT}).
		Warnf("%v failed: sense %x/%02x/%02x", scsi.ClassOf(t.cdb[0]), key, asc, ascq)
}

// showInFlight publishes how many commands' answers have not left.
func (c *conn) showInFlight() {
	if c.ses == nil {
		return
	}
	n := int32(len(c.ses.tasks.tasks) - len(c.ses.tasks.free))
	if st := &c.ses.stats; st.inFlight.Load() != n {
		st.inFlight.Store(n)
	}
}
