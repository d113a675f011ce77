// Package rdma is the narrow, verbs-shaped interface between iSER and what moves its messages:
// reliable-connected queue pairs, registered memory, batches of work requests and of completions.
//
// Words and completion codes are those of libibverbs and librdmacm. Providers: iser/rdma/verbs
// (libibverbs), iser/rdma/fabric (in this process, with strict rules). Package rdmatest is the suite
// that every provider passes.
package rdma
