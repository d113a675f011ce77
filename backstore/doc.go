// Package backstore is where blocks live: stores that read and write at byte offsets. It knows nothing
// of SCSI or of networks. Package backstoretest is the suite that every store passes.
package backstore
