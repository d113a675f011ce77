// Package isertest holds what proves iSER over RDMA right, for tests and for the integrity lab (iser lab): a Watch stands
// between iser and a provider and holds both to the rules of memory; a Model knows what each read may return; Faults and a
// Skipper break rules on purpose, since a checker that cannot fail proves nothing.
//
// It is no part of what serves or reaches disks: nothing but tests and the lab imports it.
package isertest
