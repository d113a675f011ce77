//go:build linux && cgo && rdma

// The C side of package verbs: small flat calls on libibverbs and librdmacm. Both are loaded with
// dlopen, so that a program built with this package links with libc only and starts where they are
// missing. A call that returns int gives 0 or an errno value; one that returns a pointer gives NULL
// and sets errno.
#ifndef GOISER_VERBS_H
#define GOISER_VERBS_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// GV_BATCH is the number of work requests or completions that one call takes: their verbs forms
// live on the C stack (128 bytes a send).
#define GV_BATCH 64

// The two libraries' functions. Opaque to Go.
struct gv_lib;
struct gv_lib *gv_load(const char *ibverbs, const char *rdmacm, char *err, size_t errlen);
int gv_device_count(struct gv_lib *l, int *count);

// --- devices and memory -------------------------------------------------------------------------

struct gv_limits {
	char name[64];
	uint32_t max_msg;
	int32_t max_sge, max_sge_rd, max_qp_wr, max_cqe;
	int32_t max_qp_rd_atom, max_qp_init_rd_atom;
	int32_t comp_vectors;
	uint32_t inv_flags; // of ibv_wc.wc_flags: any of them says that a key was invalidated
	uint8_t mem_mgt_extensions, window_type2, window_hazard, iwarp;
};
int gv_query(struct gv_lib *l, struct ibv_context *c, struct gv_limits *out);
struct ibv_pd *gv_alloc_pd(struct gv_lib *l, struct ibv_context *c);
struct ibv_mr *gv_reg_mr(struct gv_lib *l, struct ibv_pd *pd, void *addr, size_t len, int access);
int gv_dereg_mr(struct gv_lib *l, struct ibv_mr *mr);
struct ibv_mw *gv_alloc_mw(struct ibv_pd *pd);
int gv_dealloc_mw(struct ibv_mw *mw);

// --- completion queues --------------------------------------------------------------------------

struct gv_wc {
	uint64_t id;
	uint32_t status, vendor_err, qp_num, byte_len, inv_key;
	uint8_t recv, invalidated;
};
struct ibv_comp_channel *gv_create_channel(struct gv_lib *l, struct ibv_context *c);
int gv_destroy_channel(struct gv_lib *l, struct ibv_comp_channel *ch);
struct ibv_cq *gv_create_cq(struct gv_lib *l, struct ibv_context *c, int depth, struct ibv_comp_channel *ch, int vector);
int gv_destroy_cq(struct gv_lib *l, struct ibv_cq *cq);
// gv_poll_cq takes up to n (at most GV_BATCH) completions; it returns their number or -errno. inv_flags
// are the device's.
int gv_poll_cq(struct ibv_cq *cq, struct gv_wc *wc, int n, uint32_t inv_flags);
int gv_arm_cq(struct ibv_cq *cq);
// gv_take_cq_event takes and acknowledges one event of the channel; EAGAIN if there is none.
int gv_take_cq_event(struct gv_lib *l, struct ibv_comp_channel *ch);

// --- queue pairs --------------------------------------------------------------------------------

// A work request; its scatter/gather entries follow those of the requests before it.
struct gv_send {
	uint64_t id, remote_addr;
	uint64_t mw, mr; // struct ibv_mw *, struct ibv_mr * of a bind: numbers, as Go's memory holds them
	uint32_t opcode, flags, rkey, inv_key, access;
	int32_t num_sge;
};
struct gv_recv {
	uint64_t id;
	int32_t num_sge;
};
struct gv_posted {
	int32_t taken, err; // err is 0 or an errno value
};
struct gv_posted gv_post_send(struct ibv_qp *qp, const struct gv_send *w, int n, struct ibv_sge *sge);
struct gv_posted gv_post_recv(struct ibv_qp *qp, const struct gv_recv *w, int n, struct ibv_sge *sge);
int gv_qp_error(struct gv_lib *l, struct ibv_qp *qp);

// --- connection manager -------------------------------------------------------------------------

struct gv_addr {
	uint8_t ip[16];
	uint32_t scope;
	uint16_t port; // host order
	uint8_t is6;
};
struct gv_event {
	uint64_t handle;       // of the id the event is for; of the listener for a CONNECT_REQUEST
	struct rdma_cm_id *id; // the new id of a CONNECT_REQUEST, else NULL
	int32_t type, status;
	uint8_t responder_resources, initiator_depth, private_len;
	uint8_t private_data[256];
};
struct rdma_event_channel *gv_create_events(struct gv_lib *l);
void gv_destroy_events(struct gv_lib *l, struct rdma_event_channel *ch);
// gv_take_event copies one event out, acknowledges it, and gives a new id the handle next; EAGAIN if
// there is none.
int gv_take_event(struct gv_lib *l, struct rdma_event_channel *ch, uint64_t next, struct gv_event *out);

struct rdma_cm_id *gv_create_id(struct gv_lib *l, struct rdma_event_channel *ch, uint64_t handle);
int gv_destroy_id(struct gv_lib *l, struct rdma_cm_id *id);
void gv_local_addr(struct rdma_cm_id *id, struct gv_addr *a);
void gv_remote_addr(struct rdma_cm_id *id, struct gv_addr *a);
int gv_listen(struct gv_lib *l, struct rdma_cm_id *id, const struct gv_addr *a, int backlog);
int gv_resolve_addr(struct gv_lib *l, struct rdma_cm_id *id, const struct gv_addr *a, int timeout_ms);
int gv_resolve_route(struct gv_lib *l, struct rdma_cm_id *id, int timeout_ms);
int gv_create_qp(struct gv_lib *l, struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
	int send_depth, int recv_depth, int send_sge, int recv_sge);
void gv_destroy_qp(struct gv_lib *l, struct rdma_cm_id *id);
int gv_connect(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len, int resources, int depth);
int gv_accept(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len, int resources, int depth);
int gv_reject(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len);
int gv_disconnect(struct gv_lib *l, struct rdma_cm_id *id);

#endif
