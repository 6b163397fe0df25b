#define _GNU_SOURCE
#include "birth.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "mounts.h"
#include "setup.h"
#include "supervisor.h"
#include "sys.h"
#include "util.h"

static int failed(const char **why, const char *what)
{
	*why = what;
	return -errno;
}

const char *path_in(int dir, const char *name, const char *suffix, char buf[static 128])
{
	snprintf(buf, 128, "/proc/self/fd/%d/%s%s", dir, name, suffix);
	return buf;
}

static void unlink_in(int dir, const char *name, const char *suffix)
{
	char path[128];
	unlink(path_in(dir, name, suffix, path));
}

/* --- what both kinds need before they are cloned --- */

static int listen_in(const struct place *place, int dir, const char *id)
{
	char path[128];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, path_in(dir, id, ".sock", path));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || lchown(path, place->ceiling->owner, (gid_t)-1) < 0 ||
	    listen(fd, 64) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int open_cgroups(const struct ceiling *ceiling, struct cgroups *cgroups, const char **why)
{
	for (int i = 0; i < cgroups->n; i++)
		cgroups->fd[i] = -1;
	for (int i = 0; i < cgroups->n; i++) {
		char path[512];
		/* v1 moves one thread by `tasks`; v2 has only cgroup.procs. We are single-threaded. */
		if (snprintf(path, sizeof(path), "%s/tasks", cgroups->path[i]) >= (int)sizeof(path))
			return failed(why, "a cgroup's path");
		cgroups->fd[i] = prefix_open(&ceiling->cgroups, path, O_WRONLY);
		if (cgroups->fd[i] == -ENOENT) {
			snprintf(path, sizeof(path), "%s/cgroup.procs", cgroups->path[i]);
			cgroups->fd[i] = prefix_open(&ceiling->cgroups, path, O_WRONLY);
		}
		if (cgroups->fd[i] < 0) {
			errno = -cgroups->fd[i];
			return failed(why, cgroups->path[i]);
		}
	}
	return 0;
}

static void close_cgroups(struct cgroups *cgroups)
{
	for (int i = 0; i < cgroups->n; i++)
		if (cgroups->fd[i] >= 0)
			close(cgroups->fd[i]);
}

/* --- sandboxes --- */

struct sources {
	int fd[SOURCES_MAX];
	const struct mount_op *op[SOURCES_MAX];
	int n;
};

static void close_sources(struct sources *sources)
{
	for (int i = 0; i < sources->n; i++)
		close(sources->fd[i]);
	sources->n = 0;
}

/* Open every host path of the plan below the allowed prefixes. */
static int open_sources(const struct ceiling *ceiling, const struct sandbox_plan *plan, struct sources *sources,
			const char **why)
{
	for (int i = 0; i < plan->nmounts; i++) {
		const struct mount_op *op = &plan->mounts[i];
		const uint8_t *p = op->rest;
		if (op->kind != MOUNT_BIND && op->kind != MOUNT_OVERLAY)
			continue;
		for (const char *path; (path = packed_str(&p, op->rest_end));) {
			int fd = prefix_open(&ceiling->sources, path, O_PATH);
			if (fd < 0) {
				errno = -fd;
				return failed(why, path);
			}
			sources->op[sources->n] = op;
			sources->fd[sources->n++] = fd;
		}
	}
	return 0;
}

/* Turn each opened path into a detached mount with its flags and, when asked for, the child's ids. */
static int detach_sources(struct sources *sources, pid_t pid, const char **why)
{
	char path[64];
	int userns = -1, err = 0;
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	for (int i = 0; i < sources->n && !err; i++) {
		const struct mount_op *op = sources->op[i];
		int tree = sys_open_tree(sources->fd[i], "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
		if (tree < 0) {
			err = failed(why, (const char *)op->rest);
			break;
		}
		close(sources->fd[i]);
		sources->fd[i] = tree;
		struct kp_mount_attr attr = {.attr_set = op->kind == MOUNT_BIND ? mount_attrs(op) : 0};
		if (op->flags & MOUNT_F_IDMAP) {
			userns = userns < 0 ? open(path, O_RDONLY | O_CLOEXEC) : userns;
			attr.attr_set |= KP_ATTR_IDMAP;
			attr.userns_fd = (uint64_t)userns;
		}
		if (attr.attr_set && sys_mount_setattr(tree, AT_EMPTY_PATH, &attr) < 0)
			err = failed(why, "mapping the ids of a source (its filesystem cannot)");
	}
	if (userns >= 0)
		close(userns);
	return err;
}

static int write_map(pid_t pid, const char *file, unsigned first, unsigned count)
{
	char path[64], text[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	snprintf(text, sizeof(text), "0 %u %u\n", first, count);
	return write_file(path, text);
}

static int write_maps(const struct sandbox_plan *plan, pid_t pid, const char **why)
{
	char path[64];
	int err = 0;
	if (plan->uid_count == 0) {
		snprintf(path, sizeof(path), "/proc/%d/setgroups", pid);
		err = write_file(path, "deny");
	}
	unsigned count = plan->uid_count ? (unsigned)plan->uid_count : 1, first = (unsigned)plan->uid_start;
	if (!err)
		err = write_map(pid, "gid_map", plan->uid_count ? first : getegid(), count);
	if (!err)
		err = write_map(pid, "uid_map", plan->uid_count ? first : geteuid(), count);
	*why = "the id maps";
	return err;
}

static int send_go(int sync, const struct sources *sources)
{
	struct out out = {.len = 1};
	return out_send(sync, &out, sources->fd, sources->n);
}

/* Everything the child waits for. */
static int provide(const struct ceiling *ceiling, const struct sandbox_plan *plan, struct sources *sources, pid_t pid,
		   int sync, const char **why)
{
	int err = write_maps(plan, pid, why);
	if (!err && ceiling->privileged)
		err = detach_sources(sources, pid, why);
	if (!err && !ceiling->privileged)
		close_sources(sources); /* it opens the same paths itself: we could not detach them */
	if (!err) {
		err = send_go(sync, sources);
		*why = "telling the child";
	}
	return err;
}

static int check_ids(const struct ceiling *ceiling, const struct sandbox_plan *plan, const char **why)
{
	bool fits = ceiling->privileged ? plan->uid_start > 0 && range_covers(&ceiling->ids, plan->uid_start, plan->uid_count)
					: plan->uid_count == 0;
	*why = "the id range";
	return fits ? 0 : -EPERM;
}

static int clone_sandbox(const struct place *place, struct sandbox_plan *plan, struct sources *sources, int listener,
			 struct born *born, const char **why)
{
	int sync[2];
	uint64_t flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0)
		return failed(why, "a socket pair");
	born->pid = sys_clone3(flags, &born->pidfd);
	if (born->pid == 0)
		sandbox_main(&(struct sandbox){
			.plan = plan, .listener = listener, .end = born->end, .sync = sync[1]});
	int err = born->pid < 0 ? failed(why, "new namespaces") : 0;
	close(sync[1]);
	if (!err)
		err = provide(place->ceiling, plan, sources, born->pid, sync[0], why);
	close(sync[0]); /* without its go the child ends by itself */
	return err;
}

int birth_sandbox(const struct place *place, struct sandbox_plan *plan, struct born *born, const char **why)
{
	const struct ceiling *ceiling = place->ceiling;
	struct sources sources = {.n = 0};
	char path[128];
	int listener = -1, err = plan_check(plan, why);
	*born = (struct born){.pid = -1, .pidfd = -1, .end = -1};
	err = err ? err : check_ids(ceiling, plan, why);
	err = err ? err : open_cgroups(ceiling, &plan->cgroups, why);
	err = err ? err : open_sources(ceiling, plan, &sources, why);
	if (!err) {
		/* The record is also what keeps an id from being used twice. */
		born->end = open(path_in(place->sandboxes, plan->id, ".end", path),
				 O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
		err = born->end < 0 || fchown(born->end, ceiling->owner, (gid_t)-1) < 0 ? failed(why, "the id") : 0;
	}
	if (!err && (listener = listen_in(place, place->sandboxes, plan->id)) < 0)
		err = failed(why, "the control socket");
	if (!err)
		err = clone_sandbox(place, plan, &sources, listener, born, why);
	bool bound = listener >= 0;
	if (bound)
		close(listener);
	close_cgroups(&plan->cgroups);
	close_sources(&sources);
	if (err && born->pid < 0 && born->end >= 0) { /* it never was */
		close(born->end);
		unlink_in(place->sandboxes, plan->id, ".end");
		if (bound)
			unlink_in(place->sandboxes, plan->id, ".sock");
	}
	return err;
}

/* --- jobs --- */

static int check_user(const struct ceiling *ceiling, struct job_plan *plan, const char **why)
{
	const struct ranges *ids = &ceiling->ids;
	*why = "the job's user";
	if (!ceiling->privileged)
		return !plan->has_user || plan->uid == geteuid() ? 0 : -EPERM;
	bool fits = range_covers(ids, plan->uid, 1) && range_covers(ids, plan->gid, 1);
	for (int i = 0; i < plan->ngroups; i++)
		fits = fits && range_covers(ids, plan->groups[i], 1);
	return fits ? 0 : -EPERM;
}

int birth_job(const struct place *place, struct job_plan *plan, struct born *born, const char **why)
{
	char path[128];
	int dir = -1, listener = -1, err = check_user(place->ceiling, plan, why);
	*born = (struct born){.pid = -1, .pidfd = -1, .end = -1};
	err = err ? err : open_cgroups(place->ceiling, &plan->cgroups, why);
	if (!err && mkdir(path_in(place->jobs, plan->id, "", path), 0700) < 0)
		err = failed(why, "the id");
	bool made = !err;
	if (!err && (dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
		err = failed(why, "the job's directory");
	if (!err && fchown(dir, place->ceiling->owner, (gid_t)-1) < 0)
		err = failed(why, "the job's directory");
	if (!err && (listener = listen_in(place, place->jobs, plan->id)) < 0)
		err = failed(why, "the control socket");
	if (!err) {
		born->pid = sys_clone3(0, &born->pidfd);
		if (born->pid == 0)
			supervisor_main(&(struct supervisor){.plan = plan,
							     .listener = listener,
							     .dir = dir,
							     .jobs = place->jobs,
							     .owner = place->ceiling->owner,
							     .switch_user = place->ceiling->privileged});
		err = born->pid < 0 ? failed(why, "a new process") : 0;
	}
	bool bound = listener >= 0;
	if (bound)
		close(listener);
	if (dir >= 0)
		close(dir);
	close_cgroups(&plan->cgroups);
	if (err && bound)
		unlink_in(place->jobs, plan->id, ".sock");
	if (err && made)
		rmdir(path_in(place->jobs, plan->id, "", path));
	return err;
}
