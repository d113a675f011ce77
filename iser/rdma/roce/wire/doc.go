// Package wire is RoCEv2's packet format (IBTA 9 and annex A17): the headers behind the UDP header as views of
// the packet's bytes, and the invariant CRC that covers the addresses too. It allocates nothing.
package wire
