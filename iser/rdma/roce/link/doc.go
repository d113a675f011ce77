// Package link carries RoCEv2 packets between addresses: UDP is the link on a machine, Sim one in memory that loses,
// doubles, reorders, corrupts and delays by seed.
package link
