/* The spawner's children: who lives, how they are killed, and what is done when they end. */
#ifndef KP_CHILDREN_H
#define KP_CHILDREN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "birth.h"
#include "proto.h"

struct child {
	struct child *next;
	enum kind kind;
	char id[65];
	pid_t pid;
	bool killed;
	int32_t serial; /* grows along the list */
};

struct children {
	struct child *first, **last;
	int32_t serial;
};

void children_add(struct children *all, enum kind kind, const char *id, const struct born *born);

/* Reap those that have ended: complete their records, remove their sockets, call told for each. */
typedef void children_told(void *arg, const struct child *child, int status);
void children_reap(struct children *all, const struct place *place, children_told *told, void *arg);

/* Kill a child, or one that an earlier spawner made. 0 or -errno (-ESRCH). */
int children_kill(struct children *all, const struct place *place, const char *id);

#endif
