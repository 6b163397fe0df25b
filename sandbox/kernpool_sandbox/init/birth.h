/* Makes one sandbox or one job supervisor: checks the plan against the ceiling, clones, and gives the child what only
 * the spawner can make. */
#ifndef KP_BIRTH_H
#define KP_BIRTH_H

#include "ceiling.h"
#include "plan.h"

struct place {
	const struct ceiling *ceiling;
	int sandboxes, jobs; /* the directories s/ and j/ */
};

struct born {
	pid_t pid;
	int pidfd;
	int end; /* a sandbox's end record; -1 for a job */
};

/* 0, or -errno with *why saying what could not be done. */
int birth_sandbox(const struct place *place, struct sandbox_plan *plan, struct born *born, const char **why);
int birth_job(const struct place *place, struct job_plan *plan, struct born *born, const char **why);

/* A path that names a file of a directory we hold, whatever its own path is now. */
const char *path_in(int dir, const char *name, const char *suffix, char buf[static 128]);

#endif
