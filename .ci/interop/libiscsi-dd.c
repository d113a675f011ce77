/*
 * Copies between a file and a logical unit through libiscsi, over iscsi:// or iser:// (what libiscsi's own
 * iscsi-dd does; Debian does not package that one).
 *
 *   libiscsi-dd w URL FILE     write FILE to the unit, from block 0 on
 *   libiscsi-dd r URL FILE     overwrite FILE with as many bytes as it has, read from the unit
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

enum { BLOCK = 512, CHUNK = 256 * BLOCK };

static void die(const char *what, const char *why)
{
	fprintf(stderr, "libiscsi-dd: %s: %s\n", what, why);
	exit(1);
}

static struct iscsi_context *dial(const char *arg, int *lun)
{
	struct iscsi_context *iscsi = iscsi_create_context("iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-dd");
	struct iscsi_url *url = iscsi ? iscsi_parse_full_url(iscsi, arg) : NULL;

	if (!url)
		die(arg, iscsi ? iscsi_get_error(iscsi) : "no context");
	iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE);
	if (iscsi_full_connect_sync(iscsi, url->portal, url->lun))
		die(url->portal, iscsi_get_error(iscsi));
	*lun = url->lun;
	iscsi_destroy_url(url);
	return iscsi;
}

static void transfer(struct iscsi_context *iscsi, int lun, int writing, uint32_t lba, unsigned char *buf, uint32_t n)
{
	struct scsi_task *task = writing
		? iscsi_write10_sync(iscsi, lun, lba, buf, n, BLOCK, 0, 0, 0, 0, 0)
		: iscsi_read10_sync(iscsi, lun, lba, n, BLOCK, 0, 0, 0, 0, 0);

	if (!task || task->status != SCSI_STATUS_GOOD)
		die(writing ? "write" : "read", iscsi_get_error(iscsi));
	if (!writing) {
		if ((uint32_t)task->datain.size != n)
			die("read", "short data");
		memcpy(buf, task->datain.data, n);
	}
	scsi_free_scsi_task(task);
}

int main(int argc, char **argv)
{
	static unsigned char buf[CHUNK];
	struct iscsi_context *iscsi;
	uint32_t lba = 0;
	int lun, writing;
	size_t n;
	FILE *f;

	if (argc != 4 || (strcmp(argv[1], "w") && strcmp(argv[1], "r")))
		die("usage", "libiscsi-dd w|r URL FILE");
	writing = argv[1][0] == 'w';
	f = fopen(argv[3], "r+");
	if (!f)
		die(argv[3], strerror(errno));
	iscsi = dial(argv[2], &lun);
	while ((n = fread(buf, 1, CHUNK, f)) > 0) {
		if (n % BLOCK)
			die(argv[3], "not a whole number of blocks");
		transfer(iscsi, lun, writing, lba, buf, n);
		if (!writing && (fseek(f, (long)lba * BLOCK, SEEK_SET) || fwrite(buf, 1, n, f) != n || fflush(f)))
			die(argv[3], strerror(errno));
		lba += n / BLOCK;
	}
	if (ferror(f) || fclose(f))
		die(argv[3], strerror(errno));
	iscsi_logout_sync(iscsi);
	iscsi_destroy_context(iscsi);
	return 0;
}
