/* The supervisor of one job: runs its steps in order, writes its log and its record, and ends all of it together. */
#ifndef KP_SUPERVISOR_H
#define KP_SUPERVISOR_H

#include <stdbool.h>
#include <sys/types.h>

#include "plan.h"

struct supervisor {
	struct job_plan *plan;
	int listener;
	int dir, jobs; /* j/<id>/ and j/ */
	uid_t owner;   /* of the files that an agent of another user must read */
	bool switch_user;
};

/* Runs in the cloned child, as the spawner's user; only the steps become the job's user. */
_Noreturn void supervisor_main(const struct supervisor *s);

#endif
