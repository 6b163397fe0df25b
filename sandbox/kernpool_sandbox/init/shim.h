/* The shim of one exec: a child of PID 1 that starts the leader, adopts its orphans and can therefore kill them all. */
#ifndef KP_SHIM_H
#define KP_SHIM_H

#include <stdint.h>

#include "launch.h"

/* What a shim tells PID 1, one packet each. */
enum report_kind { REPORT_STARTED = 1, REPORT_FAILED = 2, REPORT_ENDED = 3 };

struct report {
	uint32_t kind;
	int32_t value; /* pid inside, errno, or wait status */
	uint32_t cause;
	uint64_t user_us, system_us, max_rss_kib;
	char what[64]; /* REPORT_FAILED: what could not be done */
};

/* What PID 1 tells a shim. */
struct shim_signal {
	int32_t sig;
	uint32_t tree; /* all descendants, not the leader alone */
};

struct shim {
	int report; /* the shim's end */
	const char *user;
	bool set_groups;
	struct launch launch; /* without its user and environment */
	struct environment *environment;
	uint64_t timeout_ms;
};

/* Runs in the forked child; exits when the leader and every descendant are gone. */
_Noreturn void shim_main(struct shim *shim);

#endif
