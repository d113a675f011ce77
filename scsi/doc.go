// Package scsi is a SCSI device server for direct-access block devices (SAM-5, SPC-4, SBC-3). A
// transport gives it tasks and moves the data; scsi decides what a CDB means and what its answer is.
//
// It knows nothing of iSCSI. Blocks live in a backstore.Store. Each unit has a task set (taskset.go), which says
// when a task may start; to keep one that may not, and to abort tasks, is the transport's part.
//
// A transport does this for each command:
//
//	d.Prepare(t)
//	if t.Held {
//		// go on with other tasks until t.Ready is called
//		d.Resume(t)
//	}
//	if !t.Done {
//		// fetch t.OutLen bytes into t.Out; unless t.Mapped, find room for t.InLen bytes in t.In
//		d.Execute(t) // elsewhere than on the connection's loop if t.MayBlock; or d.Abandon(t)
//		// if t.NeedsRoom: the same once more, with room in t.In
//	}
//	// if t.Preempted is not empty: end those nexuses' tasks on the unit, and go on when they are quiet
//	// queue t.InData bytes of t.In, t.Status, t.Sense() and the residual
//	d.Release(t) // now; of a Mapped task, once its data has left
//
// Who may use a unit is decided in this order (SAM-5, 5.3.3): the unit attention of a reset, a reservation of others
// (reservation.go), other unit attentions, the access state of the port (alua.go). Registrations and the persistent
// reservation are a value that is replaced, never changed, by a pure function (reservation_registry.go).
//
// The table in operations.go has one row a command; the dispatcher and REPORT SUPPORTED OPERATION CODES
// read the same row.
package scsi
