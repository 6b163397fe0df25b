/* Plans as C structures that point into the frame (or template) they were decoded from. */
#ifndef KP_PLAN_H
#define KP_PLAN_H

#include <stdint.h>

#include "frame.h"

#define MOUNTS_MAX 160
#define SOURCES_MAX FRAME_FDS_MAX /* host directories and files of one plan: they travel in one message */
#define CGROUPS_MAX 16
#define RLIMITS_MAX 16
#define STEPS_MAX 16
#define GROUPS_MAX 64

struct mount_op {
	uint32_t kind, flags, mode;
	uint64_t size;
	const char *target;
	const uint8_t *rest, *rest_end; /* what follows the target: sources, lowers, a link's text or a file's data */
	int trees[6];                   /* detached mounts that were gathered for it */
};

struct rlimit_op {
	uint32_t resource;
	uint64_t value;
};

struct limits {
	struct rlimit_op op[RLIMITS_MAX];
	int n;
};

struct cgroups {
	const char *path[CGROUPS_MAX];
	int fd[CGROUPS_MAX]; /* their tasks or cgroup.procs, opened by the spawner: a write of "0" joins */
	int n;
};

struct sandbox_plan {
	const char *id, *hostname, *template_id;
	struct mount_op mounts[MOUNTS_MAX];
	int nmounts;
	uint64_t uid_start, uid_count, parked_ttl_ms;
	uint32_t flags;
	struct cgroups cgroups;
	struct limits limits;
};

struct step {
	const char *name;
	uint64_t timeout_ms;
	const uint8_t *args, *args_end; /* packed strings */
};

struct job_plan {
	const char *id, *cwd;
	struct step steps[STEPS_MAX];
	int nsteps;
	const uint8_t *body; /* the whole frame, for its TAG_ENV values */
	size_t body_len;
	bool has_user;
	uint32_t uid, gid, groups[GROUPS_MAX];
	int ngroups;
	uint64_t log_bytes_max, segment_bytes, grace_ms, timeout_ms;
	struct cgroups cgroups;
	struct limits limits;
};

/* Apply the tagged values of a body to a plan (a template first, then the request). 0, or -errno with *why set. */
int plan_decode(struct sandbox_plan *plan, const uint8_t *body, size_t len, const char **why);

/* Check a decoded plan as a whole. */
int plan_check(const struct sandbox_plan *plan, const char **why);

int job_decode(struct job_plan *plan, const struct frame *f, const char **why);

#endif
