#define _GNU_SOURCE
#include "util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sys.h"

static int64_t clock_ms(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t boot_ms(void)
{
	return clock_ms(CLOCK_BOOTTIME);
}

int64_t unix_ms(void)
{
	return clock_ms(CLOCK_REALTIME);
}

ssize_t read_small(int dirfd, const char *path, char *buf, size_t cap)
{
	/* O_NONBLOCK: a FIFO in the place of the file must not hang us. */
	int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	struct stat st;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return -EINVAL;
	}
	size_t len = 0;
	ssize_t n = 1;
	while (len < cap - 1 && (n = read(fd, buf + len, cap - 1 - len)) > 0)
		len += (size_t)n;
	int err = errno;
	close(fd);
	buf[len] = 0;
	return n < 0 ? -err : (ssize_t)len;
}

int write_all(int fd, const void *data, size_t len)
{
	const char *p = data;
	while (len > 0) {
		ssize_t n = write(fd, p, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int err = write_all(fd, text, strlen(text));
	close(fd);
	return err;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

void close_all_except(int *keep, size_t n)
{
	qsort(keep, n, sizeof(*keep), by_number);
	unsigned first = 3;
	for (size_t i = 0; i < n; i++) {
		if (keep[i] < (int)first)
			continue;
		if ((unsigned)keep[i] > first)
			sys_close_range(first, (unsigned)keep[i] - 1);
		first = (unsigned)keep[i] + 1;
	}
	sys_close_range(first, ~0U);
}

void stdio_from(int fd)
{
	for (int i = 0; i < 3; i++)
		dup2(fd, i);
}

bool valid_id(const char *id)
{
	size_t len = strlen(id);
	if (len == 0 || len > 64 || id[0] == '.')
		return false;
	for (; *id; id++)
		if (!isalnum((unsigned char)*id) && !strchr("._-", *id))
			return false;
	return true;
}

static char *command_line;
static size_t command_line_size;

void command_line_hold(int argc, char **argv)
{
	command_line = argv[0];
	for (int i = 0; i < argc && argv[i] == command_line + command_line_size; i++)
		command_line_size += strlen(argv[i]) + 1;
}

void command_line_set(const char *id)
{
	memset(command_line, 0, command_line_size);
	snprintf(command_line, command_line_size, "kp-init %s", id);
}

const char *boot_id(void)
{
	static char id[64];
	if (!id[0] && read_small(AT_FDCWD, "/proc/sys/kernel/random/boot_id", id, sizeof(id)) < 36)
		strcpy(id, "unknown");
	id[strcspn(id, "\n")] = 0;
	return id;
}

void end_record(int fd, const char *cause, int status, const char *detail)
{
	char text[512];
	int n = snprintf(text, sizeof(text) - 1, "cause %s\nended_unix_ms %lld\nstatus %d\ndetail %s", cause,
			 (long long)unix_ms(), status, detail);
	size_t len = (size_t)n < sizeof(text) - 1 ? (size_t)n : sizeof(text) - 2;
	text[len] = '\n';
	/* Nobody is left to tell about a failed write: the reader takes an empty record for "lost". */
	(void)!write(fd, text, len + 1);
}
