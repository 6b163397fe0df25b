/* Turns a fresh clone into a sandbox: cgroups, identity, mounts, network and locks, then PID 1's loop. */
#ifndef KP_SETUP_H
#define KP_SETUP_H

#include "plan.h"

struct sandbox {
	struct sandbox_plan *plan;
	int listener, end, sync;
};

/* How PID 1 exits. */
enum { EXIT_SHUTDOWN = 0, EXIT_TTL = 64, EXIT_ORPHANED = 65, EXIT_SETUP = 66 };

/* Runs in the cloned child; waits on `sync` for its id maps and for the detached mounts of a privileged spawner. */
_Noreturn void sandbox_main(struct sandbox *s);

#endif
