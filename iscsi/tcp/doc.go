// Package tcp is the iSCSI datamover on a byte stream: PDUs with digests over TCP (RFC 7143).
package tcp
