/*
 * load keeps reads or writes under way at a target, through libiscsi over TCP, and says how many it took and how long
 * each. (iscsi-perf of libiscsi only reads, and fio of Debian has no libiscsi engine.) One thread serves all sessions.
 *
 *   gcc -O2 -o load load.c -liscsi
 *   load -m read|write|randread|randwrite -b BYTES -q DEPTH -t SECONDS [-s SESSIONS] [-l LUNS] URL
 *
 * DEPTH is that of each session. With LUNS more than 1 the requests of a session go in turn to as many units from the
 * URL's on. Sequential requests follow each other on each unit, whoever sends them. What completes in the first tenth of
 * the time warms up and is not measured; the CPU time and "all" count it. Without requests (-q 0) the sessions are idle.
 * THE WRITE MODES OVERWRITE THE UNITS.
 *
 * It prints "ready" when all sessions are logged in, and in the end one line of JSON: seconds, ios (measured) and all,
 * latencies in microseconds, and its own CPU time in seconds.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

enum { MAX_SESSIONS = 1024, MAX_LUNS = 1024, MAX_MICROS = 4000000 };

struct unit { int lun; uint32_t block; uint64_t blocks, next; };

struct io { int session; unsigned char *buf; struct scsi_iovec iov; uint64_t begun; };

static struct iscsi_context *sessions[MAX_SESSIONS];
static struct unit units[MAX_LUNS];
static int nsessions = 1, nunits = 1, writes, scattered, stopping, measuring;
static uint32_t bytes = 4096;
static uint64_t turn, inflight, all, measured, rng = 88172645463325252ull;
static uint32_t hist[MAX_MICROS + 1]; /* by latency in microseconds; the last: that and more */
static double latencies;

static void die(int session, const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, iscsi_get_error(sessions[session]));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t chance(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static void submit(struct io *io);

static void completed(struct iscsi_context *c, int status, void *data, void *private)
{
	struct scsi_task *task = data;
	struct io *io = private;

	(void)c;
	if (status != SCSI_STATUS_GOOD)
		die(io->session, "a request failed");
	scsi_free_scsi_task(task);
	inflight--;
	all++;
	if (measuring) {
		uint64_t us = (now() - io->begun) / 1000;
		measured++;
		latencies += us;
		hist[us < MAX_MICROS ? us : MAX_MICROS]++;
	}
	if (!stopping)
		submit(io);
}

static void submit(struct io *io)
{
	struct iscsi_context *c = sessions[io->session];
	struct unit *u = &units[turn++ % nunits];
	uint64_t per = bytes / u->block, lba = chance() % (u->blocks / per) * per;
	struct scsi_task *task;

	if (!scattered) {
		lba = u->next;
		u->next += per;
		if (u->next + per > u->blocks)
			u->next = 0;
	}
	io->begun = now();
	if (writes)
		task = iscsi_write16_task(c, u->lun, lba, io->buf, bytes, u->block, 0, 0, 0, 0, 0, completed, io);
	else
		task = iscsi_read16_task(c, u->lun, lba, bytes, u->block, 0, 0, 0, 0, 0, completed, io);
	if (!task)
		die(io->session, "submit");
	if (!writes) {
		io->iov.iov_base = io->buf;
		io->iov.iov_len = bytes;
		scsi_task_set_iov_in(task, &io->iov, 1);
	}
	inflight++;
}

static void start(int session)
{
	struct io *io = calloc(1, sizeof(*io));

	if (!io || posix_memalign((void **)&io->buf, 4096, bytes))
		exit(1);
	for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t v = chance();
		memcpy(io->buf + i, &v, 8);
	}
	io->session = session;
	submit(io);
}

static void log_in(int i, const char *text)
{
	char name[64];
	struct iscsi_url *url;

	snprintf(name, sizeof(name), "iqn.2026-01.local.load:%d", i);
	if (!(sessions[i] = iscsi_create_context(name)))
		exit(1);
	if (!(url = iscsi_parse_full_url(sessions[i], text)))
		die(i, "URL");
	iscsi_set_session_type(sessions[i], ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(sessions[i], ISCSI_HEADER_DIGEST_NONE);
	if (iscsi_full_connect_sync(sessions[i], url->portal, url->lun))
		die(i, "log in");
	if (i == 0)
		for (int k = 0; k < nunits; k++)
			units[k].lun = url->lun + k;
	iscsi_destroy_url(url);
}

static void measure(struct unit *u)
{
	struct scsi_readcapacity16 *rc;
	struct scsi_task *task = iscsi_readcapacity16_sync(sessions[0], u->lun);

	for (int i = 0; i < 3 && task && task->status != SCSI_STATUS_GOOD; i++) { /* unit attentions */
		scsi_free_scsi_task(task);
		task = iscsi_readcapacity16_sync(sessions[0], u->lun);
	}
	if (!task || task->status != SCSI_STATUS_GOOD || !(rc = scsi_datain_unmarshall(task)))
		die(0, "READ CAPACITY");
	u->block = rc->block_length;
	u->blocks = rc->returned_lba + 1;
	if (bytes % u->block || bytes / u->block > u->blocks) {
		fprintf(stderr, "load: unit %d cannot be asked for %u bytes\n", u->lun, bytes);
		exit(1);
	}
	scsi_free_scsi_task(task);
}

/* units that a session has not heard of greet it with a unit attention: it is taken before anything is measured */
static void greet(int session)
{
	for (int k = 0; k < nunits; k++)
		for (int i = 0; i < 3; i++) {
			struct scsi_task *task = iscsi_testunitready_sync(sessions[session], units[k].lun);
			int good = task && task->status == SCSI_STATUS_GOOD;
			if (task)
				scsi_free_scsi_task(task);
			if (good)
				break;
		}
}

static void serve(void)
{
	static struct pollfd fds[MAX_SESSIONS];

	for (int i = 0; i < nsessions; i++) {
		fds[i].fd = iscsi_get_fd(sessions[i]);
		fds[i].events = iscsi_which_events(sessions[i]);
	}
	if (poll(fds, nsessions, 100) < 0 && errno != EINTR)
		exit(1);
	for (int i = 0; i < nsessions; i++)
		if (fds[i].revents && iscsi_service(sessions[i], fds[i].revents) < 0)
			die(i, "session lost");
}

static double cpu(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static uint64_t percentile(double part)
{
	uint64_t n = 0;

	for (uint64_t us = 0; us <= MAX_MICROS; us++)
		if ((n += hist[us]) > part * measured)
			return us;
	return MAX_MICROS;
}

int main(int argc, char **argv)
{
	const char *mode = "randread";
	double seconds = 1, used;
	int c, depth = 32;
	uint64_t begin, warm, end;

	while ((c = getopt(argc, argv, "m:b:q:t:s:l:")) != -1)
		switch (c) {
		case 'm': mode = optarg; break;
		case 'b': bytes = atoi(optarg); break;
		case 'q': depth = atoi(optarg); break;
		case 't': seconds = atof(optarg); break;
		case 's': nsessions = atoi(optarg); break;
		case 'l': nunits = atoi(optarg); break;
		default: return 2;
		}
	if (optind + 1 != argc || nsessions < 1 || nsessions > MAX_SESSIONS || nunits < 1 || nunits > MAX_LUNS || bytes < 512) {
		fprintf(stderr, "usage: load -m MODE -b BYTES -q DEPTH -t SECONDS [-s SESSIONS] [-l LUNS] URL\n");
		return 2;
	}
	scattered = !strncmp(mode, "rand", 4);
	writes = strstr(mode, "write") != NULL;
	for (int i = 0; i < nsessions; i++)
		log_in(i, argv[optind]);
	for (int k = 0; k < nunits; k++)
		measure(&units[k]);
	for (int i = 0; i < nsessions; i++)
		greet(i);
	printf("ready\n");
	fflush(stdout);

	used = cpu();
	begin = now();
	warm = begin + seconds * 1e8;
	end = begin + seconds * 1e9;
	for (int i = 0; i < nsessions; i++)
		for (int k = 0; k < depth; k++)
			start(i);
	while (inflight || (depth == 0 && !stopping)) {
		serve();
		uint64_t t = now();
		if (!measuring && !stopping && t >= warm) {
			measuring = 1;
			begin = t;
		}
		if (!stopping && t >= end) {
			stopping = 1;
			measuring = 0;
			end = t;
		}
	}
	used = cpu() - used;
	printf("{\"seconds\":%.6f,\"ios\":%llu,\"all\":%llu,\"cpu\":%.6f,\"mean\":%.1f,\"p50\":%llu,\"p99\":%llu,\"p999\":%llu}\n",
	       (end - begin) / 1e9, (unsigned long long)measured, (unsigned long long)all, used, measured ? latencies / measured : 0,
	       (unsigned long long)percentile(0.5), (unsigned long long)percentile(0.99), (unsigned long long)percentile(0.999));
	for (int i = 0; i < nsessions; i++) {
		iscsi_logout_sync(sessions[i]);
		iscsi_destroy_context(sessions[i]);
	}
	return 0;
}
