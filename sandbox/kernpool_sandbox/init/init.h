/* PID 1 of a sandbox: one loop over its control socket, its deadlines, its children and their output. */
#ifndef KP_INIT_H
#define KP_INIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"
#include "plan.h"
#include "ring.h"
#include "shim.h"

#define EXECS_MAX 256 /* running or not acknowledged; the list of all fits one reply */
#define HELPERS_MAX 32
#define ORPHAN_MS 30000 /* an unclaimed sandbox without an agent lives so long */

enum exec_state {
	EXEC_STARTING, /* its shim is about to start the leader; the request has no answer yet */
	EXEC_RUNNING,  /* the leader runs */
	EXEC_ENDED,    /* the leader ended; waits to be acknowledged */
	EXEC_ACKED,    /* forgotten by the agent, but background processes of it live: their output is dropped */
};

struct exec {
	struct exec *next;
	enum exec_state state;
	int32_t id, leader; /* the agent's number, and the leader's pid */
	pid_t shim;         /* 0 once reaped */
	int report;         /* socket to the shim */
	uint32_t seq;       /* of the request that wants an answer */
	bool attached;      /* an agent reads the pipes; else we do */
	bool told;          /* the end was sent */
	int stdin_fd;       /* -1 once handed over */
	struct ring out[2]; /* stdout, stderr */
	struct report end;
};

struct helper {
	pid_t pid; /* 0: free */
	uint32_t seq;
	int control; /* whom its answer is for */
};

struct init {
	const struct sandbox_plan *plan;
	int listener, end, signals, timer;
	int control;   /* the agent; -1: none */
	int candidate; /* a connection that has not said hello */
	bool blocked;  /* an event did not fit into the control socket's buffer */
	bool claimed;
	char token[128];
	int64_t ttl_at, parked_at, orphan_at; /* on boot_ms(); 0: none */
	uint8_t *env;                         /* the claim's body, for its TAG_ENV values */
	size_t env_len;
	struct exec *execs;
	int nexecs;
	struct helper helpers[HELPERS_MAX];
};

_Noreturn void init_run(const struct sandbox_plan *plan, int listener, int end);

/* Answer a request; an agent that does not read its answers is dropped. */
void init_reply(struct init *init, const struct frame *f, int32_t a, const char *detail);
bool init_send(struct init *init, const struct out *out, const int *fds, int nfds);

/* --- execs.c: the table of execs --- */
void exec_request(struct init *init, struct frame *f);       /* EXEC, SIGNAL, ACK, REATTACH, LIST */
void execs_reports(struct init *init, struct exec *e);       /* read what a shim says */
bool execs_reaped(struct init *init, pid_t pid, int status); /* false: not a shim */
void execs_detach(struct init *init);                        /* no agent reads any more: the rings do */
void execs_tell(struct init *init);                          /* send the ends that were not sent */
void execs_sweep(struct init *init);                         /* kill what a killed shim has left to us */

/* --- files.c: helpers that touch the sandbox's files --- */
void file_request(struct init *init, struct frame *f);
bool files_reaped(struct init *init, pid_t pid, int status);

#endif
