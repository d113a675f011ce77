// Package events keeps the last events of a daemon: those lines of its log that are at level info or above. It is a hook
// of the logger, so that there is one place where an event is told:
//
//	ring := events.New(1000)
//	log.AddHook(ring)
//	log.WithField("event", "config").Info("target added")
//	list := ring.Since(0) // all that are kept
//
// A line's field "event" is the event's kind. What asks for events is the admin API and the web page.
package events
