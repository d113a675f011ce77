// A stand-in for libibverbs and librdmacm in one file, built and loaded by the tests: one device, whose
// queue pairs carry messages to themselves, and a connection manager between ids of this process. What is
// posted is written to the file that FAKE_VERBS_LOG names, a line a work request. With FAKE_VERBS_RXE set it
// tells of remote invalidation as the kernel's rxe does.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define RING 1024
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER, cm_mu = PTHREAD_MUTEX_INITIALIZER;

struct cq {
	struct ibv_cq v;
	struct ibv_wc wc[RING];
	unsigned head, tail;
	int armed;
	int fd; // the channel's writing end
};
struct qp {
	struct ibv_qp v;
	uint64_t recv[RING];
	unsigned rhead, rtail;
	uint32_t max_send, in_flight; // sends not yet polled
};
struct channel { struct ibv_comp_channel v; int wfd; };
struct events { struct rdma_event_channel v; int wfd; };
static struct rdma_cm_id *listening;

static FILE *logfile(void)
{
	const char *name = getenv("FAKE_VERBS_LOG");
	return name ? fopen(name, "a") : NULL;
}

static void complete(struct cq *q, struct ibv_wc wc)
{
	q->wc[q->tail++ % RING] = wc;
	if (q->armed) {
		void *p = q;
		q->armed = 0;
		if (write(q->fd, &p, sizeof(p)) < 0)
			abort();
	}
}

static void log_sges(FILE *f, struct ibv_sge *s, int n)
{
	for (int i = 0; i < n; i++)
		fprintf(f, " [%#lx %u %#x]", (unsigned long)s[i].addr, s[i].length, s[i].lkey);
	fprintf(f, "\n");
}

static int post_send(struct ibv_qp *v, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)v;
	int err = 0;
	pthread_mutex_lock(&mu);
	FILE *f = logfile();
	if (f)
		fprintf(f, "doorbell\n");
	for (; w; w = w->next) {
		if (q->in_flight == q->max_send) {
			*bad = w;
			err = ENOMEM;
			break;
		}
		q->in_flight++;
		uint32_t len = 0;
		for (int i = 0; i < w->num_sge; i++)
			len += w->sg_list[i].length;
		if (f) {
			fprintf(f, "send id=%#lx op=%d flags=%#x inv=%#x", (unsigned long)w->wr_id, w->opcode, w->send_flags, w->invalidate_rkey);
			fprintf(f, " remote=%#lx rkey=%#x", (unsigned long)w->wr.rdma.remote_addr, w->wr.rdma.rkey);
			if (w->opcode == IBV_WR_BIND_MW)
				fprintf(f, " bind=%#x->%#x mr=%#x addr=%#lx len=%lu access=%#x", w->bind_mw.mw->rkey, w->bind_mw.rkey,
					w->bind_mw.bind_info.mr->lkey, (unsigned long)w->bind_mw.bind_info.addr,
					(unsigned long)w->bind_mw.bind_info.length, w->bind_mw.bind_info.mw_access_flags);
			log_sges(f, w->sg_list, w->num_sge);
		}
		struct ibv_wc wc = {.wr_id = w->wr_id, .opcode = IBV_WC_SEND, .qp_num = v->qp_num, .byte_len = len, .vendor_err = 7};
		if (w->wr_id == 0xbad) { // asks for a failure: fields but these four mean nothing
			wc.status = IBV_WC_REM_ACCESS_ERR;
			wc.opcode = IBV_WC_RECV;
			wc.wc_flags = IBV_WC_WITH_INV;
		}
		complete((struct cq *)v->send_cq, wc);
		if ((w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_INV) && q->rhead != q->rtail) {
			struct ibv_wc r = {.wr_id = q->recv[q->rhead++ % RING], .opcode = IBV_WC_RECV, .qp_num = v->qp_num, .byte_len = len};
			if (w->opcode == IBV_WR_SEND_WITH_INV) {
				r.wc_flags = getenv("FAKE_VERBS_RXE") ? IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV;
				r.invalidated_rkey = w->invalidate_rkey;
			}
			complete((struct cq *)v->recv_cq, r);
		}
	}
	if (f)
		fclose(f);
	pthread_mutex_unlock(&mu);
	return err;
}

static int post_recv(struct ibv_qp *v, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	struct qp *q = (struct qp *)v;
	(void)bad;
	pthread_mutex_lock(&mu);
	FILE *f = logfile();
	for (; w; w = w->next) {
		q->recv[q->rtail++ % RING] = w->wr_id;
		if (f) {
			fprintf(f, "recv id=%#lx", (unsigned long)w->wr_id);
			log_sges(f, w->sg_list, w->num_sge);
		}
	}
	if (f)
		fclose(f);
	pthread_mutex_unlock(&mu);
	return 0;
}

static struct qp *only_qp; // whose sends the polls give back room for

static int poll_cq(struct ibv_cq *v, int n, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)v;
	int got = 0;
	pthread_mutex_lock(&mu);
	while (got < n && q->head != q->tail) {
		wc[got] = q->wc[q->head++ % RING];
		if (only_qp && wc[got].vendor_err == 7)
			only_qp->in_flight--;
		got++;
	}
	pthread_mutex_unlock(&mu);
	return got;
}

static int req_notify(struct ibv_cq *v, int solicited)
{
	(void)solicited;
	pthread_mutex_lock(&mu);
	((struct cq *)v)->armed = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *w = calloc(1, sizeof(*w));
	w->context = pd->context;
	w->pd = pd;
	w->type = type;
	w->rkey = 0x5500;
	return w;
}
static int dealloc_mw(struct ibv_mw *w) { free(w); return 0; }

static struct ibv_device device = {.transport_type = IBV_TRANSPORT_IB, .name = "fake0"};
static struct ibv_context context = {
	.device = &device, .num_comp_vectors = 2,
	.ops = {.post_send = post_send, .post_recv = post_recv, .poll_cq = poll_cq, .req_notify_cq = req_notify,
		.alloc_mw = alloc_mw, .dealloc_mw = dealloc_mw},
};

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **l = calloc(2, sizeof(*l));
	l[0] = &device;
	*n = 1;
	return l;
}
void ibv_free_device_list(struct ibv_device **l) { free(l); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	(void)c;
	*a = (struct ibv_device_attr){.max_sge = 4, .max_sge_rd = 3, .max_qp_wr = 512, .max_cqe = RING, .max_qp_rd_atom = 8,
		.max_qp_init_rd_atom = 6, .max_mw = 10, .vendor_id = getenv("FAKE_VERBS_RXE") ? 0xffffff : 0x2c9,
		.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B};
	return 0;
}
int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	(void)c; (void)port;
	((struct ibv_port_attr *)a)->max_msg_sz = 1 << 23;
	return 0;
}
struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *p = calloc(1, sizeof(*p));
	p->context = c;
	return p;
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	if (len == 1 << 30) { // more than may be locked
		errno = ENOMEM;
		return NULL;
	}
	struct ibv_mr *m = calloc(1, sizeof(*m));
	*m = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = len, .lkey = 0x100 + access, .rkey = 0x200 + access};
	return m;
}
int ibv_dereg_mr(struct ibv_mr *m) { free(m); return 0; }
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	int fd[2];
	if (pipe(fd))
		abort();
	ch->v.context = c;
	ch->v.fd = fd[0];
	ch->wfd = fd[1];
	return &ch->v;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *v)
{
	close(v->fd);
	close(((struct channel *)v)->wfd);
	free(v);
	return 0;
}
struct ibv_cq *ibv_create_cq(struct ibv_context *c, int depth, void *ctx, struct ibv_comp_channel *ch, int vector)
{
	struct cq *q = calloc(1, sizeof(*q));
	if (vector < 0 || vector >= c->num_comp_vectors)
		abort();
	q->v = (struct ibv_cq){.context = c, .channel = ch, .cq_context = ctx, .cqe = depth};
	q->fd = ((struct channel *)ch)->wfd;
	return &q->v;
}
static unsigned events_taken; // and not acknowledged
int ibv_destroy_cq(struct ibv_cq *v)
{
	if (events_taken)
		return EBUSY;
	free(v);
	return 0;
}
int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **ctx)
{
	if (read(ch->fd, cq, sizeof(*cq)) != sizeof(*cq))
		return -1;
	__atomic_add_fetch(&events_taken, 1, __ATOMIC_SEQ_CST);
	*ctx = (*cq)->cq_context;
	return 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	(void)cq;
	__atomic_sub_fetch(&events_taken, n, __ATOMIC_SEQ_CST);
}
int ibv_modify_qp(struct ibv_qp *v, struct ibv_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)v;
	if (mask != IBV_QP_STATE || a->qp_state != IBV_QPS_ERR)
		return EINVAL;
	pthread_mutex_lock(&mu);
	while (q->rhead != q->rtail) {
		struct ibv_wc wc = {.wr_id = q->recv[q->rhead++ % RING], .status = IBV_WC_WR_FLUSH_ERR, .qp_num = v->qp_num};
		complete((struct cq *)v->recv_cq, wc);
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

// --- connection manager ----------------------------------------------------------------------------

struct id {
	struct rdma_cm_id v;
	struct id *peer;
};
struct cm_event {
	struct rdma_cm_event v;
	uint8_t priv[256];
};

static void tell(struct rdma_cm_id *id, struct rdma_cm_id *listen, enum rdma_cm_event_type t, int status, const struct rdma_conn_param *p)
{
	struct cm_event *e = calloc(1, sizeof(*e));
	e->v = (struct rdma_cm_event){.id = id, .listen_id = listen, .event = t, .status = status};
	if (p) {
		memcpy(e->priv, p->private_data, p->private_data_len);
		e->v.param.conn = (struct rdma_conn_param){.private_data = e->priv, .private_data_len = p->private_data_len,
			.responder_resources = p->initiator_depth, .initiator_depth = p->responder_resources};
	}
	if (write(((struct events *)id->channel)->wfd, &e, sizeof(e)) < 0)
		abort();
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct events *e = calloc(1, sizeof(*e));
	int fd[2];
	if (pipe(fd))
		abort();
	e->v.fd = fd[0];
	e->wfd = fd[1];
	return &e->v;
}
void rdma_destroy_event_channel(struct rdma_event_channel *v)
{
	close(v->fd);
	close(((struct events *)v)->wfd);
	free(v);
}
int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **e)
{
	return read(ch->fd, e, sizeof(*e)) == sizeof(*e) ? 0 : -1;
}
int rdma_ack_cm_event(struct rdma_cm_event *e) { free(e); return 0; }
int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *ctx, enum rdma_port_space ps)
{
	struct id *i = calloc(1, sizeof(*i));
	i->v = (struct rdma_cm_id){.channel = ch, .context = ctx, .ps = ps, .verbs = &context};
	*out = &i->v;
	return 0;
}
int rdma_destroy_id(struct rdma_cm_id *v)
{
	struct id *i = (struct id *)v;
	pthread_mutex_lock(&cm_mu);
	if (listening == v)
		listening = NULL;
	if (i->peer)
		i->peer->peer = NULL;
	pthread_mutex_unlock(&cm_mu);
	return 0; // not freed: events on their way still name it
}
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *a)
{
	memcpy(&id->route.addr.src_storage, a, a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	if (id->route.addr.src_sin.sin_port == 0)
		id->route.addr.src_sin.sin_port = 0xaabb;
	return 0;
}
int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	(void)backlog;
	listening = id;
	return 0;
}
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	static int timeouts = 2;
	(void)src;
	if (ms != 5000)
		return -1;
	memcpy(&id->route.addr.dst_storage, dst, dst->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	memcpy(&id->route.addr.src_storage, &id->route.addr.dst_storage, sizeof(struct sockaddr_in6));
	if (id->route.addr.dst_sin.sin_port == 0) { // asks for: not on an RDMA device
		tell(id, NULL, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, NULL);
	} else if (timeouts > 0) { // the first tries get no answer
		timeouts--;
		tell(id, NULL, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT, NULL);
	} else {
		tell(id, NULL, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL);
	}
	return 0;
}
int rdma_resolve_route(struct rdma_cm_id *id, int ms)
{
	(void)ms;
	tell(id, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL);
	return 0;
}
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct qp *q = calloc(1, sizeof(*q));
	if (a->qp_type != IBV_QPT_RC || a->sq_sig_all) {
		errno = EINVAL;
		return -1;
	}
	q->v = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .qp_num = 0x1234, .qp_type = a->qp_type};
	q->max_send = a->cap.max_send_wr;
	only_qp = q;
	id->qp = &q->v;
	return 0;
}
void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (only_qp == (struct qp *)id->qp)
		only_qp = NULL;
	free(id->qp);
	id->qp = NULL;
}
static void log_param(const char *what, const struct rdma_conn_param *p)
{
	FILE *f = logfile();
	if (!f)
		return;
	fprintf(f, "%s resources=%u depth=%u retry=%u rnr=%u private=", what, p->responder_resources, p->initiator_depth, p->retry_count, p->rnr_retry_count);
	for (int i = 0; i < p->private_data_len; i++)
		fprintf(f, "%02x", ((const uint8_t *)p->private_data)[i]);
	fprintf(f, "\n");
	fclose(f);
}
int rdma_connect(struct rdma_cm_id *v, struct rdma_conn_param *p)
{
	struct id *i = (struct id *)v, *n;
	log_param("connect", p);
	pthread_mutex_lock(&cm_mu);
	if (!listening) {
		tell(v, NULL, RDMA_CM_EVENT_REJECTED, 8, NULL);
		pthread_mutex_unlock(&cm_mu);
		return 0;
	}
	rdma_create_id(listening->channel, (struct rdma_cm_id **)&n, listening->context, RDMA_PS_TCP);
	n->v.route.addr = v->route.addr;
	n->peer = i;
	i->peer = n;
	tell(&n->v, listening, RDMA_CM_EVENT_CONNECT_REQUEST, 0, p);
	pthread_mutex_unlock(&cm_mu);
	return 0;
}
int rdma_accept(struct rdma_cm_id *v, struct rdma_conn_param *p)
{
	struct id *i = (struct id *)v;
	log_param("accept", p);
	pthread_mutex_lock(&cm_mu);
	tell(v, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
	if (i->peer)
		tell(&i->peer->v, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, p);
	pthread_mutex_unlock(&cm_mu);
	return 0;
}
int rdma_reject(struct rdma_cm_id *v, const void *priv, uint8_t len)
{
	struct id *i = (struct id *)v;
	struct rdma_conn_param p = {.private_data = priv, .private_data_len = len};
	pthread_mutex_lock(&cm_mu);
	if (i->peer) {
		tell(&i->peer->v, NULL, RDMA_CM_EVENT_REJECTED, 28, &p);
		i->peer->peer = NULL;
		i->peer = NULL;
	}
	pthread_mutex_unlock(&cm_mu);
	return 0;
}
int rdma_disconnect(struct rdma_cm_id *v)
{
	struct id *i = (struct id *)v;
	int connected;
	pthread_mutex_lock(&cm_mu);
	if ((connected = i->peer != NULL)) {
		tell(&i->peer->v, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
		i->peer->peer = NULL;
		i->peer = NULL;
	}
	pthread_mutex_unlock(&cm_mu);
	errno = EINVAL;
	return connected ? 0 : -1;
}
