// Package iser is the iSER datamover (RFC 7145): iSCSI PDUs in RDMA Sends, data by RDMA Read and Write.
// It knows nothing of which provider carries it (package rdma).
package iser
