// Package cm is the connection manager's messages (IBTA 12 and annex A11): the 256-byte management datagrams by
// which two RoCE endpoints open and close a connection.
package cm
