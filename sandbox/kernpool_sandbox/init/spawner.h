/* The spawner: takes a closed list of requests, clones sandboxes and job supervisors, and records how they end. */
#ifndef KP_SPAWNER_H
#define KP_SPAWNER_H

#include <stdbool.h>

#include "ceiling.h"

struct spawner_options {
	const char *socket, *state;
	const char
	    *runtime; /* a directory for what each sandbox leaves in the filesystem; NULL: `s` in the state directory */
	struct ceiling ceiling;
	bool daemon; /* fork once the socket listens; the first process then exits with 0 */
};

enum { EXIT_LOCKED = 75 }; /* another spawner works in the state directory */

/* Serve until asked to stop or SIGTERM. Returns an exit status. */
int spawner_run(const struct spawner_options *options);

#endif
