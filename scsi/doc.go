// Package scsi is a SCSI device server for direct-access block devices (SAM-5, SPC-4, SBC-3). A
// transport gives it tasks and moves the data; scsi decides what a CDB means and what its answer is.
//
// It knows nothing of iSCSI. Blocks live in a backstore.Store.
package scsi
