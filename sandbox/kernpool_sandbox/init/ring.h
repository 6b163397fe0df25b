/* One output stream of an exec while no agent reads it: a pipe drained into a fixed ring. */
#ifndef KP_RING_H
#define KP_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
	int fd;           /* read end of the pipe; -1 at its end */
	size_t cap;       /* 0: count and drop */
	uint8_t *mem;     /* made with the first byte */
	uint64_t drained; /* bytes ever read here */
	uint64_t base;    /* `drained` when an agent last took over */
};

/* Read what is there, at most some pipefuls; at the end the pipe is closed. */
void ring_drain(struct ring *r);

uint64_t ring_kept(const struct ring *r);
uint64_t ring_dropped(const struct ring *r);

/* Put what is kept into a memfd positioned at its start; -1 with errno. */
int ring_memfd(const struct ring *r);

/* An agent took over: forget what is kept. */
void ring_taken(struct ring *r);

void ring_close(struct ring *r);

#endif
