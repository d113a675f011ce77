// Package cm is the connection manager's messages (IBTA 12 and annex A11): the 256-byte management datagrams by
// which two RoCE endpoints open and close a connection. Manager is the state of all connections of an address: events and the
// time go in, messages to send and news for the queue pairs come out.
package cm
