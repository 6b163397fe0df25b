#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util.h"

#define READS_PER_TURN 8 /* so that one chatty stream does not starve the rest */

/* Where the next bytes go: the ring up to its wrap, or a place to forget them. */
static uint8_t *next_room(struct ring *r, size_t *room)
{
	static uint8_t waste[16 * 1024];
	if (r->cap && !r->mem) {
		r->mem = mmap(NULL, r->cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (r->mem == MAP_FAILED) {
			r->mem = NULL;
			r->cap = 0; /* no memory left in the sandbox: then count and drop */
		}
	}
	size_t at = r->cap ? r->drained % r->cap : 0;
	*room = r->cap ? r->cap - at : sizeof(waste);
	return r->cap ? r->mem + at : waste;
}

void ring_drain(struct ring *r)
{
	for (int i = 0; i < READS_PER_TURN && r->fd >= 0; i++) {
		size_t room;
		uint8_t *to = next_room(r, &room);
		ssize_t n = read(r->fd, to, room);
		if (n > 0) {
			r->drained += (uint64_t)n;
		} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
			close(r->fd);
			r->fd = -1;
		} else {
			return;
		}
	}
}

uint64_t ring_kept(const struct ring *r)
{
	uint64_t since = r->drained - r->base;
	return since < r->cap ? since : r->cap;
}

uint64_t ring_dropped(const struct ring *r)
{
	return r->drained - r->base - ring_kept(r);
}

int ring_memfd(const struct ring *r)
{
	int fd = memfd_create("ring", MFD_CLOEXEC);
	size_t kept = (size_t)ring_kept(r), at = (size_t)((r->drained - kept) % r->cap);
	size_t first = kept < r->cap - at ? kept : r->cap - at;
	if (fd < 0)
		return -1;
	if (write_all(fd, r->mem + at, first) < 0 || write_all(fd, r->mem, kept - first) < 0 ||
	    lseek(fd, 0, SEEK_SET) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

void ring_taken(struct ring *r)
{
	if (r->mem)
		munmap(r->mem, r->cap);
	r->mem = NULL;
	r->base = r->drained;
}

void ring_close(struct ring *r)
{
	ring_taken(r);
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}
