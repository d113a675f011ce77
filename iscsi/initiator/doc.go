// Package initiator is the iSCSI initiator engine and its public API, written once on the Datamover
// interface: discovery, login, sessions, and disks that read and write.
package initiator
