// Package tcp is the iSCSI datamover on a byte stream: PDUs with digests over TCP (RFC 7143).
//
// It implements iscsi.TargetDatamover, iscsi.InitiatorDatamover and iscsi.Listener: puts become Data-In
// PDUs, gets become R2T and Data-Out, and the initiator's end answers R2Ts and places Data-In by itself.
// It knows nothing of login, sessions or SCSI beyond the fields that move data.
//
//	l, err := tcp.Listen(":3260")
//	dm, err := l.Accept(ctx)    // an iscsi.TargetDatamover in the login phase
//	for {
//		n, err := dm.Wait(events, deadline)
//		...                     // decide; dm.Send, dm.PutData, dm.Respond
//		err = dm.Flush()
//	}
//
// What arrives is parsed in one receive buffer, many PDUs a read; solicited data goes from there, or from
// the socket itself, to where it belongs. What leaves is a queue that turns into at most one batch of
// headers and referenced payload at a time; the batch is written without blocking, and a goroutine finishes
// what the socket did not take, so that a loop never waits for its peer to read.
package tcp
