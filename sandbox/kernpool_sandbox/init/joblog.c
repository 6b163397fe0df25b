#define _GNU_SOURCE
#include "joblog.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static void segment_name(uint64_t start, char name[static 32])
{
	snprintf(name, 32, "log.%016llu", (unsigned long long)start);
}

/* Every segment but the last is full, so the starts are multiples of its size. */
static void open_segment(struct joblog *log)
{
	char name[32];
	segment_name(log->end, name);
	log->fd = openat(log->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (log->fd >= 0)
		(void)!fchown(log->fd, log->owner, (gid_t)-1);
	while (log->end + log->segment_bytes - log->first > log->bytes_max && log->first < log->end) {
		segment_name(log->first, name);
		unlinkat(log->dir, name, 0);
		log->first += log->segment_bytes;
	}
}

void joblog_write(struct joblog *log, const void *data, size_t len)
{
	const char *p = data;
	while (len > 0) {
		if (log->fd < 0)
			open_segment(log);
		uint64_t room = log->segment_bytes - log->end % log->segment_bytes;
		ssize_t n = log->fd < 0 ? -1 : write(log->fd, p, len < room ? len : (size_t)room);
		if (n <= 0) {
			log->lost += len;
			return;
		}
		p += n;
		len -= (size_t)n;
		log->end += (uint64_t)n;
		if (log->end % log->segment_bytes == 0) {
			close(log->fd);
			log->fd = -1;
		}
	}
}
