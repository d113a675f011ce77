// Package iscsi is the iSCSI protocol (RFC 7143) without any transport: the PDU codec, text keys and
// their negotiation, names, serial numbers, and the Datamover interface by which the target and the
// initiator engines use a transport.
//
// It is given bytes and gives back bytes and decisions. It knows nothing of sockets, RDMA or files.
// CHAP is in iscsi/chap. The datamovers are iscsi/tcp (PDUs on a byte stream) and iser (RFC 7145).
package iscsi
