// Package capture writes the packets of RoCE links to a pcapng file (draft-ietf-opsawg-pcapng), as tcpdump would have
// seen them, without privileges, and reads such files and those of tcpdump. It decodes nothing: a Packet's data begins
// with what the file says it begins with.
//
//	c, err := capture.New(file, capture.Options{})
//	provider.Watch(c)
//	...
//	provider.Watch(nil)
//	err = c.Close()
//
// What links show is copied into a bounded queue, which a goroutine writes out. A file that cannot keep up loses
// packets, which the file tells of; it never holds the data path up.
//
// A socket does not show the headers that its packets had below the InfiniBand transport's, so IP and UDP headers are
// made up: addresses, ports and lengths are true, IPv4 identifications only of what was sent, time to live and type of
// service not at all. The ICRC does not cover what is not true, but for the identification.
package capture
