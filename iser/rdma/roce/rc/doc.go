// Package rc is a reliable connection's queue pair (IBTA 9.7) as a state machine: requester, responder, completer,
// and the memory that packets may reach. It has no goroutine, socket, lock or clock: packets, posts and the time go
// in; packets, completions and the next deadline come out.
package rc
