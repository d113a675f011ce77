//go:build linux && cgo && rdma

#include "verbs.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// These three are macros around inline functions that would need the library at link time. The plain
// functions behind them are looked up like the rest.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define IBVERBS_FUNCTIONS(f) \
	f(ibv_get_device_list) f(ibv_free_device_list) f(ibv_get_device_name) f(ibv_query_device) \
	f(ibv_query_port) f(ibv_alloc_pd) f(ibv_reg_mr) f(ibv_dereg_mr) f(ibv_create_comp_channel) \
	f(ibv_destroy_comp_channel) f(ibv_create_cq) f(ibv_destroy_cq) f(ibv_get_cq_event) \
	f(ibv_ack_cq_events) f(ibv_modify_qp)
#define RDMACM_FUNCTIONS(f) \
	f(rdma_create_event_channel) f(rdma_destroy_event_channel) f(rdma_create_id) f(rdma_destroy_id) \
	f(rdma_bind_addr) f(rdma_listen) f(rdma_resolve_addr) f(rdma_resolve_route) f(rdma_create_qp) \
	f(rdma_destroy_qp) f(rdma_connect) f(rdma_accept) f(rdma_reject) f(rdma_disconnect) \
	f(rdma_get_cm_event) f(rdma_ack_cm_event)

struct gv_lib {
#define FIELD(name) __typeof__(name) *name;
	IBVERBS_FUNCTIONS(FIELD)
	RDMACM_FUNCTIONS(FIELD)
#undef FIELD
};

// The libraries stay loaded: there is no use in unloading them, and providers leave threads behind.
struct gv_lib *gv_load(const char *ibverbs, const char *rdmacm, char *err, size_t errlen)
{
	void *v = dlopen(ibverbs, RTLD_NOW), *c = v ? dlopen(rdmacm, RTLD_NOW) : NULL;
	if (!v || !c) {
		snprintf(err, errlen, "%s", dlerror());
		return NULL;
	}
	struct gv_lib *l = calloc(1, sizeof(*l));
	if (!l) {
		snprintf(err, errlen, "out of memory");
		return NULL;
	}
	const char *missing = NULL;
#define LOOKUP(so, name) if (!(*(void **)&l->name = dlsym(so, #name))) missing = #name;
#define FROM_IBVERBS(name) LOOKUP(v, name)
#define FROM_RDMACM(name) LOOKUP(c, name)
	IBVERBS_FUNCTIONS(FROM_IBVERBS)
	RDMACM_FUNCTIONS(FROM_RDMACM)
	if (missing) {
		snprintf(err, errlen, "%s and %s lack the function %s", ibverbs, rdmacm, missing);
		free(l);
		return NULL;
	}
	return l;
}

// librdmacm returns -1 and sets errno, libibverbs returns an errno value, providers either sign of one.
static int result(int r)
{
	if (r == 0)
		return 0;
	if (r == -1)
		return errno ? errno : EIO;
	return r < 0 ? -r : r;
}

int gv_device_count(struct gv_lib *l, int *count)
{
	struct ibv_device **list = l->ibv_get_device_list(count);
	if (!list)
		return errno;
	l->ibv_free_device_list(list);
	return 0;
}

// --- devices and memory -------------------------------------------------------------------------

#define RXE_VENDOR_ID 0xffffff

int gv_query(struct gv_lib *l, struct ibv_context *c, struct gv_limits *out)
{
	struct ibv_device_attr a = {0};
	struct ibv_port_attr p = {0};
	int r = result(l->ibv_query_device(c, &a));
	if (r == 0)
		r = result(l->ibv_query_port(c, 1, (struct _compat_ibv_port_attr *)&p));
	if (r)
		return r;
	memset(out, 0, sizeof(*out));
	snprintf(out->name, sizeof(out->name), "%s", l->ibv_get_device_name(c->device));
	out->max_msg = p.max_msg_sz;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_qp_wr = a.max_qp_wr;
	out->max_cqe = a.max_cqe;
	out->max_qp_rd_atom = a.max_qp_rd_atom;
	out->max_qp_init_rd_atom = a.max_qp_init_rd_atom;
	out->comp_vectors = c->num_comp_vectors;
	out->mem_mgt_extensions = !!(a.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS);
	out->window_type2 = a.max_mw > 0 && c->ops.alloc_mw &&
		(a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B));
	// rxe_invalidate_mw dereferences the region of a window that has none: the kernel panics (6.12).
	out->window_hazard = a.vendor_id == RXE_VENDOR_ID;
	// rxe puts the kernel's IB_WC_WITH_INVALIDATE, bit 2, in completions for user space, where that bit
	// is IBV_WC_IP_CSUM_OK and means nothing on a reliable connection (6.1 to 6.12 at least).
	out->inv_flags = IBV_WC_WITH_INV | (a.vendor_id == RXE_VENDOR_ID ? IBV_WC_IP_CSUM_OK : 0);
	out->iwarp = c->device->transport_type == IBV_TRANSPORT_IWARP;
	return 0;
}

struct ibv_pd *gv_alloc_pd(struct gv_lib *l, struct ibv_context *c) { return l->ibv_alloc_pd(c); }

struct ibv_mr *gv_reg_mr(struct gv_lib *l, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return l->ibv_reg_mr(pd, addr, len, access);
}

int gv_dereg_mr(struct gv_lib *l, struct ibv_mr *mr) { return result(l->ibv_dereg_mr(mr)); }
struct ibv_mw *gv_alloc_mw(struct ibv_pd *pd) { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }
int gv_dealloc_mw(struct ibv_mw *mw) { return result(ibv_dealloc_mw(mw)); }

// --- completion queues --------------------------------------------------------------------------

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

struct ibv_comp_channel *gv_create_channel(struct gv_lib *l, struct ibv_context *c)
{
	struct ibv_comp_channel *ch = l->ibv_create_comp_channel(c);
	if (ch && set_nonblocking(ch->fd) < 0) {
		l->ibv_destroy_comp_channel(ch);
		return NULL;
	}
	return ch;
}

int gv_destroy_channel(struct gv_lib *l, struct ibv_comp_channel *ch)
{
	return result(l->ibv_destroy_comp_channel(ch));
}

struct ibv_cq *gv_create_cq(struct gv_lib *l, struct ibv_context *c, int depth, struct ibv_comp_channel *ch, int vector)
{
	return l->ibv_create_cq(c, depth, NULL, ch, vector);
}

int gv_destroy_cq(struct gv_lib *l, struct ibv_cq *cq) { return result(l->ibv_destroy_cq(cq)); }

int gv_poll_cq(struct ibv_cq *cq, struct gv_wc *wc, int n, uint32_t inv_flags)
{
	struct ibv_wc v[GV_BATCH];
	int got = ibv_poll_cq(cq, n < GV_BATCH ? n : GV_BATCH, v);
	if (got < 0)
		return -result(got);
	for (int i = 0; i < got; i++) {
		struct gv_wc *w = &wc[i];
		w->id = v[i].wr_id;
		w->status = v[i].status;
		w->vendor_err = v[i].vendor_err;
		w->qp_num = v[i].qp_num;
		w->recv = w->invalidated = 0;
		w->byte_len = w->inv_key = 0;
		if (v[i].status != IBV_WC_SUCCESS)
			continue; // the other fields are undefined
		w->recv = !!(v[i].opcode & IBV_WC_RECV);
		w->byte_len = v[i].byte_len;
		if (w->recv && (v[i].wc_flags & inv_flags)) {
			w->invalidated = 1;
			w->inv_key = v[i].invalidated_rkey;
		}
	}
	return got;
}

int gv_arm_cq(struct ibv_cq *cq) { return result(ibv_req_notify_cq(cq, 0)); }

int gv_take_cq_event(struct gv_lib *l, struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq;
	void *ctx;
	if (l->ibv_get_cq_event(ch, &cq, &ctx))
		return errno;
	l->ibv_ack_cq_events(cq, 1);
	return 0;
}

// --- queue pairs --------------------------------------------------------------------------------

// Fills v[i] from w; the caller links the chain.
static void send_wr(struct ibv_send_wr *v, const struct gv_send *w, struct ibv_sge *sge)
{
	memset(v, 0, sizeof(*v));
	v->wr_id = w->id;
	v->opcode = w->opcode;
	v->send_flags = w->flags;
	v->sg_list = sge;
	v->num_sge = w->num_sge;
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		v->wr.rdma.remote_addr = w->remote_addr;
		v->wr.rdma.rkey = w->rkey;
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		v->invalidate_rkey = w->inv_key;
		break;
	case IBV_WR_BIND_MW:
		v->bind_mw.mw = (struct ibv_mw *)(uintptr_t)w->mw;
		v->bind_mw.rkey = ibv_inc_rkey(v->bind_mw.mw->rkey);
		v->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)w->mr;
		v->bind_mw.bind_info.addr = sge->addr;
		v->bind_mw.bind_info.length = sge->length;
		v->bind_mw.bind_info.mw_access_flags = w->access;
		v->sg_list = NULL;
		v->num_sge = 0;
		break;
	default:
		break;
	}
}

// Whether one of v binds mw: the next bind of it needs the key that this one makes, so it must wait
// until this one has been posted.
static int binds(const struct ibv_send_wr *v, int n, uint64_t mw)
{
	for (int i = 0; i < n; i++)
		if (v[i].opcode == IBV_WR_BIND_MW && v[i].bind_mw.mw == (struct ibv_mw *)(uintptr_t)mw)
			return 1;
	return 0;
}

struct gv_posted gv_post_send(struct ibv_qp *qp, const struct gv_send *w, int n, struct ibv_sge *sge)
{
	struct ibv_send_wr v[GV_BATCH], *bad;
	struct gv_posted p = {0, 0};
	while (p.taken < n && p.err == 0) {
		int k = 0, ok;
		for (int i = p.taken; i < n && k < GV_BATCH; i++, k++) {
			if (w[i].opcode == IBV_WR_BIND_MW && binds(v, k, w[i].mw))
				break;
			send_wr(&v[k], &w[i], sge);
			sge += w[i].num_sge;
			if (k > 0)
				v[k - 1].next = &v[k];
		}
		errno = 0;
		bad = v;
		p.err = result(ibv_post_send(qp, v, &bad));
		ok = p.err ? (int)(bad - v) : k;
		for (int i = 0; i < ok; i++)
			if (v[i].opcode == IBV_WR_BIND_MW)
				v[i].bind_mw.mw->rkey = v[i].bind_mw.rkey;
		p.taken += ok;
	}
	return p;
}

struct gv_posted gv_post_recv(struct ibv_qp *qp, const struct gv_recv *w, int n, struct ibv_sge *sge)
{
	struct ibv_recv_wr v[GV_BATCH], *bad = v;
	struct gv_posted p = {0, 0};
	if (n > GV_BATCH)
		n = GV_BATCH;
	for (int i = 0; i < n; i++) {
		v[i].wr_id = w[i].id;
		v[i].next = i + 1 < n ? &v[i + 1] : NULL;
		v[i].sg_list = sge;
		v[i].num_sge = w[i].num_sge;
		sge += w[i].num_sge;
	}
	errno = 0;
	p.err = result(ibv_post_recv(qp, v, &bad));
	p.taken = p.err ? (int)(bad - v) : n;
	return p;
}

int gv_qp_error(struct gv_lib *l, struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return result(l->ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

// --- connection manager -------------------------------------------------------------------------

struct rdma_event_channel *gv_create_events(struct gv_lib *l)
{
	struct rdma_event_channel *ch = l->rdma_create_event_channel();
	if (ch && set_nonblocking(ch->fd) < 0) {
		l->rdma_destroy_event_channel(ch);
		return NULL;
	}
	return ch;
}

void gv_destroy_events(struct gv_lib *l, struct rdma_event_channel *ch) { l->rdma_destroy_event_channel(ch); }

int gv_take_event(struct gv_lib *l, struct rdma_event_channel *ch, uint64_t next, struct gv_event *out)
{
	struct rdma_cm_event *e;
	if (l->rdma_get_cm_event(ch, &e))
		return errno;
	memset(out, 0, sizeof(*out));
	out->type = e->event;
	out->status = e->status;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		out->handle = (uintptr_t)e->listen_id->context;
		out->id = e->id;
		e->id->context = (void *)(uintptr_t)next;
	} else {
		out->handle = (uintptr_t)e->id->context;
	}
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		out->responder_resources = e->param.conn.responder_resources;
		out->initiator_depth = e->param.conn.initiator_depth;
		if (e->param.conn.private_data) {
			out->private_len = e->param.conn.private_data_len;
			memcpy(out->private_data, e->param.conn.private_data, out->private_len);
		}
		break;
	default:
		break;
	}
	l->rdma_ack_cm_event(e);
	return 0;
}

struct rdma_cm_id *gv_create_id(struct gv_lib *l, struct rdma_event_channel *ch, uint64_t handle)
{
	struct rdma_cm_id *id;
	return l->rdma_create_id(ch, &id, (void *)(uintptr_t)handle, RDMA_PS_TCP) ? NULL : id;
}

int gv_destroy_id(struct gv_lib *l, struct rdma_cm_id *id) { return result(l->rdma_destroy_id(id)); }

static void from_sockaddr(const struct sockaddr *s, struct gv_addr *a)
{
	memset(a, 0, sizeof(*a));
	if (s->sa_family == AF_INET6) {
		const struct sockaddr_in6 *s6 = (const void *)s;
		memcpy(a->ip, &s6->sin6_addr, 16);
		a->port = ntohs(s6->sin6_port);
		a->scope = s6->sin6_scope_id;
		a->is6 = 1;
	} else {
		const struct sockaddr_in *s4 = (const void *)s;
		memcpy(a->ip, &s4->sin_addr, 4);
		a->port = ntohs(s4->sin_port);
	}
}

static struct sockaddr *to_sockaddr(const struct gv_addr *a, struct sockaddr_storage *s)
{
	memset(s, 0, sizeof(*s));
	if (a->is6) {
		struct sockaddr_in6 *s6 = (void *)s;
		s6->sin6_family = AF_INET6;
		memcpy(&s6->sin6_addr, a->ip, 16);
		s6->sin6_port = htons(a->port);
		s6->sin6_scope_id = a->scope;
	} else {
		struct sockaddr_in *s4 = (void *)s;
		s4->sin_family = AF_INET;
		memcpy(&s4->sin_addr, a->ip, 4);
		s4->sin_port = htons(a->port);
	}
	return (struct sockaddr *)s;
}

void gv_local_addr(struct rdma_cm_id *id, struct gv_addr *a) { from_sockaddr(&id->route.addr.src_addr, a); }
void gv_remote_addr(struct rdma_cm_id *id, struct gv_addr *a) { from_sockaddr(&id->route.addr.dst_addr, a); }

int gv_listen(struct gv_lib *l, struct rdma_cm_id *id, const struct gv_addr *a, int backlog)
{
	struct sockaddr_storage s;
	int r = result(l->rdma_bind_addr(id, to_sockaddr(a, &s)));
	return r ? r : result(l->rdma_listen(id, backlog));
}

int gv_resolve_addr(struct gv_lib *l, struct rdma_cm_id *id, const struct gv_addr *a, int timeout_ms)
{
	struct sockaddr_storage s;
	return result(l->rdma_resolve_addr(id, NULL, to_sockaddr(a, &s), timeout_ms));
}

int gv_resolve_route(struct gv_lib *l, struct rdma_cm_id *id, int timeout_ms)
{
	return result(l->rdma_resolve_route(id, timeout_ms));
}

int gv_create_qp(struct gv_lib *l, struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
	int send_depth, int recv_depth, int send_sge, int recv_sge)
{
	struct ibv_qp_init_attr a = {
		.send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = send_depth, .max_recv_wr = recv_depth,
			.max_send_sge = send_sge, .max_recv_sge = recv_sge},
	};
	return result(l->rdma_create_qp(id, pd, &a));
}

void gv_destroy_qp(struct gv_lib *l, struct rdma_cm_id *id) { l->rdma_destroy_qp(id); }

// A REQ's retry counts are for the peer's queue pair, a REP's for ours: 7 retries after a lost
// packet, and "for ever" when the receiver is not ready.
static void conn_param(struct rdma_conn_param *p, const void *priv, int len, int resources, int depth)
{
	memset(p, 0, sizeof(*p));
	p->private_data = len ? priv : NULL;
	p->private_data_len = len;
	p->responder_resources = resources;
	p->initiator_depth = depth;
	p->retry_count = 7;
	p->rnr_retry_count = 7;
}

int gv_connect(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len, int resources, int depth)
{
	struct rdma_conn_param p;
	conn_param(&p, priv, len, resources, depth);
	return result(l->rdma_connect(id, &p));
}

int gv_accept(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len, int resources, int depth)
{
	struct rdma_conn_param p;
	conn_param(&p, priv, len, resources, depth);
	return result(l->rdma_accept(id, &p));
}

int gv_reject(struct gv_lib *l, struct rdma_cm_id *id, const void *priv, int len)
{
	return result(l->rdma_reject(id, len ? priv : NULL, len));
}

int gv_disconnect(struct gv_lib *l, struct rdma_cm_id *id) { return result(l->rdma_disconnect(id)); }
