#include "plan.h"

#include <errno.h>
#include <string.h>

#include "util.h"

#define MOUNT_HEADER_BYTES 20

static int refuse(const char **why, const char *text)
{
	*why = text;
	return -EINVAL;
}

static uint64_t at_most_duration(uint64_t ms)
{
	return ms < DURATION_MS_MAX ? ms : DURATION_MS_MAX;
}

static int add_rlimit(struct limits *limits, const struct tlv *t, const char **why)
{
	if (t->len != 12 || limits->n == RLIMITS_MAX)
		return refuse(why, "rlimits");
	struct rlimit_op *op = &limits->op[limits->n++];
	memcpy(&op->resource, t->data, 4);
	memcpy(&op->value, t->data + 4, 8);
	return 0;
}

static int add_cgroup(struct cgroups *cgroups, const struct tlv *t, const char **why)
{
	if (cgroups->n == CGROUPS_MAX)
		return refuse(why, "too many cgroups");
	cgroups->path[cgroups->n++] = tlv_str(t);
	return 0;
}

/* How many NUL-terminated strings, all of them absolute paths, fill [p, end); -1 for anything else. */
static int count_paths(const uint8_t *p, const uint8_t *end)
{
	int n = 0;
	for (const char *path; (path = packed_str(&p, end)); n++)
		if (path[0] != '/')
			return -1;
	return p == end ? n : -1;
}

static bool rest_makes_sense(const struct mount_op *op)
{
	const uint8_t *p = op->rest;
	int paths = count_paths(op->rest, op->rest_end);
	switch (op->kind) {
	case MOUNT_BIND:
		return paths == 1;
	case MOUNT_OVERLAY:
		return paths >= 1 && paths <= 48; /* a mount option holds 255 bytes */
	case MOUNT_SYMLINK:
		return packed_str(&p, op->rest_end) && p == op->rest_end;
	case MOUNT_FILE:
		return true;
	default:
		return op->rest == op->rest_end;
	}
}

static int add_mount(struct sandbox_plan *plan, const struct tlv *t, const char **why)
{
	if (t->len <= MOUNT_HEADER_BYTES || plan->nmounts == MOUNTS_MAX)
		return refuse(why, plan->nmounts == MOUNTS_MAX ? "too many mount operations" : "a mount operation");
	struct mount_op *op = &plan->mounts[plan->nmounts];
	memset(op, 0xff, sizeof(*op)); /* every tree is -1 */
	memcpy(&op->kind, t->data, 4);
	memcpy(&op->flags, t->data + 4, 4);
	memcpy(&op->mode, t->data + 8, 4);
	memcpy(&op->size, t->data + 12, 8);
	op->rest = t->data + MOUNT_HEADER_BYTES;
	op->rest_end = t->data + t->len;
	op->target = packed_str(&op->rest, op->rest_end);
	bool staging = op->kind == MOUNT_STAGING;
	if (op->kind < MOUNT_STAGING || op->kind > MOUNT_READ_ONLY)
		return refuse(why, "an unknown mount operation");
	if (staging != (plan->nmounts == 0))
		return refuse(why, "Staging must be the first mount operation and the only one");
	if (!op->target || (!staging && op->target[0] != '/') || !rest_makes_sense(op))
		return refuse(why, "a mount operation's paths");
	plan->nmounts++;
	return 0;
}

static int plan_apply(struct sandbox_plan *plan, const struct tlv *t, const char **why)
{
	switch (t->tag) {
	case TAG_ID:
		plan->id = tlv_str(t);
		return 0;
	case TAG_TEMPLATE:
		plan->template_id = tlv_str(t);
		return 0;
	case TAG_HOSTNAME:
		plan->hostname = tlv_str(t);
		return 0;
	case TAG_UID_START:
		plan->uid_start = tlv_u64(t);
		return 0;
	case TAG_UID_COUNT:
		plan->uid_count = tlv_u64(t);
		return 0;
	case TAG_PARKED_TTL_MS:
		plan->parked_ttl_ms = at_most_duration(tlv_u64(t));
		return 0;
	case TAG_FLAGS:
		plan->flags = tlv_u32(t);
		return 0;
	case TAG_MOUNT:
		return add_mount(plan, t, why);
	case TAG_CGROUP:
		return add_cgroup(&plan->cgroups, t, why);
	case TAG_RLIMIT:
		return add_rlimit(&plan->limits, t, why);
	default:
		return 0;
	}
}

int plan_decode(struct sandbox_plan *plan, const uint8_t *body, size_t len, const char **why)
{
	struct tlv t;
	for (size_t pos = 0; tlv_next(body, len, &pos, &t);) {
		int err = plan_apply(plan, &t, why);
		if (err < 0)
			return err;
	}
	return 0;
}

int plan_check(const struct sandbox_plan *plan, const char **why)
{
	if (!plan->id || !valid_id(plan->id))
		return refuse(why, "the id");
	if (!plan->nmounts)
		return refuse(why, "a plan without mount operations");
	if (plan->uid_start > UINT32_MAX || plan->uid_count > UINT32_MAX)
		return refuse(why, "the uid range");
	if (plan->hostname && (!plan->hostname[0] || strlen(plan->hostname) > 64))
		return refuse(why, "the hostname");
	int sources = 0;
	for (int i = 0; i < plan->nmounts; i++)
		if (plan->mounts[i].kind == MOUNT_BIND || plan->mounts[i].kind == MOUNT_OVERLAY)
			sources += count_paths(plan->mounts[i].rest, plan->mounts[i].rest_end);
	return sources <= SOURCES_MAX ? 0 : refuse(why, "more than 64 host sources");
}

static int add_step(struct job_plan *plan, const struct tlv *t, const char **why)
{
	if (t->len <= 8 || plan->nsteps == STEPS_MAX)
		return refuse(why, "the steps");
	struct step *step = &plan->steps[plan->nsteps++];
	step->timeout_ms = at_most_duration(tlv_u64(t));
	step->args = t->data + 8;
	step->args_end = t->data + t->len;
	step->name = packed_str(&step->args, step->args_end);
	const uint8_t *p = step->args;
	while (packed_str(&p, step->args_end))
		;
	bool whole = step->name && p == step->args_end && step->args < step->args_end;
	return whole ? 0 : refuse(why, "a step's command");
}

static int job_apply(struct job_plan *plan, const struct tlv *t, const char **why)
{
	switch (t->tag) {
	case TAG_STEP:
		return add_step(plan, t, why);
	case TAG_CGROUP:
		return add_cgroup(&plan->cgroups, t, why);
	case TAG_RLIMIT:
		return add_rlimit(&plan->limits, t, why);
	case TAG_UID:
		plan->uid = tlv_u32(t);
		plan->has_user = true;
		return 0;
	case TAG_GROUP:
		if (plan->ngroups == GROUPS_MAX)
			return refuse(why, "too many groups");
		plan->groups[plan->ngroups++] = tlv_u32(t);
		return 0;
	default:
		return 0;
	}
}

int job_decode(struct job_plan *plan, const struct frame *f, const char **why)
{
	struct tlv t;
	for (size_t pos = 0; tlv_next(f->body, f->body_len, &pos, &t);) {
		int err = job_apply(plan, &t, why);
		if (err < 0)
			return err;
	}
	plan->body = f->body;
	plan->body_len = f->body_len;
	plan->id = frame_str(f, TAG_ID, "");
	plan->cwd = frame_str(f, TAG_CWD, "/");
	plan->gid = frame_u32(f, TAG_GID, plan->uid);
	plan->log_bytes_max = frame_u64(f, TAG_LOG_BYTES_MAX, 1ULL << 30);
	plan->segment_bytes = frame_u64(f, TAG_SEGMENT_BYTES, 8ULL << 20);
	plan->grace_ms = frame_ms(f, TAG_GRACE_MS, 10000);
	plan->timeout_ms = frame_ms(f, TAG_TIMEOUT_MS, 0);
	if (!valid_id(plan->id))
		return refuse(why, "the id");
	if (!plan->nsteps)
		return refuse(why, "a job without steps");
	if (plan->segment_bytes < 4096 || plan->log_bytes_max < plan->segment_bytes)
		return refuse(why, "log_bytes_max must be at least segment_bytes, and that at least 4096");
	return 0;
}
