#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys.h"
#include "util.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* All worthless outside the sandbox's user namespace; enough for apt-get, useradd and chown. */
#define ROOT_CAPS                                                                                                      \
	(1U << CAP_CHOWN | 1U << CAP_DAC_OVERRIDE | 1U << CAP_FOWNER | 1U << CAP_FSETID | 1U << CAP_KILL |             \
	 1U << CAP_SETGID | 1U << CAP_SETUID | 1U << CAP_NET_BIND_SERVICE | 1U << CAP_SYS_CHROOT | 1U << CAP_SETFCAP)

void drop_bounding(void)
{
	for (unsigned cap = 0; cap < 64; cap++)
		if (cap >= 32 || !(ROOT_CAPS & 1U << cap))
			if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno == EINVAL)
				break; /* past the kernel's last one */
}

/* Plain system calls: the C library's wrappers keep other threads in step, which a vfork child must not try. */
static int set_ids(const struct user *user)
{
	if (user->set_groups && syscall(SYS_setgroups, user->ngroups, user->groups) < 0)
		return -errno;
	if (syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0)
		return -errno;
	return syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0 ? -errno : 0;
}

int become(const struct user *user)
{
	int err = set_ids(user);
	if (err < 0)
		return err;
	uint32_t caps = user->uid == 0 ? ROOT_CAPS : 0;
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{.effective = caps, .permitted = caps}};
	if (syscall(SYS_capset, &header, data) < 0)
		return -errno;
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? -errno : 0;
}

static int apply_limits(const struct limits *limits)
{
	for (int i = 0; i < limits->n; i++) {
		struct rlimit now, r = {limits->op[i].value, limits->op[i].value};
		/* A limit above ours cannot be had: take ours. */
		if (getrlimit(limits->op[i].resource, &now) == 0 && r.rlim_max > now.rlim_max)
			r.rlim_cur = r.rlim_max = now.rlim_max;
		if (setrlimit(limits->op[i].resource, &r) < 0)
			return -errno;
	}
	return 0;
}

static int join_cgroups(const struct cgroups *cgroups)
{
	for (int i = 0; i < cgroups->n; i++)
		if (write(cgroups->fd[i], "0", 1) < 0)
			return -errno;
	return 0;
}

/* Try argv[0] itself or along PATH; returns the errno that says most: EACCES wins over ENOENT. */
static int exec_along_path(const struct launch *l)
{
	const char *name = l->argv[0], *path = DEFAULT_PATH;
	int best = ENOENT;
	if (!name[0])
		return ENOENT;
	if (strchr(name, '/')) {
		execve(name, l->argv, l->envp);
		return errno;
	}
	for (char **v = l->envp; *v; v++)
		if (strncmp(*v, "PATH=", 5) == 0)
			path = *v + 5;
	while (*path) {
		char file[4096];
		size_t len = strcspn(path, ":");
		int n = snprintf(file, sizeof(file), "%.*s/%s", (int)len, path, name);
		path += len + (path[len] == ':');
		if (len == 0 || (size_t)n >= sizeof(file))
			continue;
		execve(file, l->argv, l->envp);
		if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
			return errno;
		if (errno == EACCES)
			best = EACCES;
	}
	return best;
}

static struct launch_error failed(const char *what, int err)
{
	return (struct launch_error){.err = err, .what = what};
}

/* Runs in the vfork child: it shares our memory and returns only when something failed. */
static struct launch_error prepare_and_exec(const struct launch *l)
{
	int err = 0;
	setpgid(0, 0); /* without a terminal a session is of no use, and costs a scheduling group */
	if (l->cgroups && (err = join_cgroups(l->cgroups)) < 0)
		return failed("joining the cgroup", -err);
	int in = l->stdin_fd, out = l->stdout_fd, errors = l->stderr_fd;
	if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(errors, 2) < 0)
		return failed("the standard streams", errno);
	if ((err = apply_limits(l->limits)) < 0)
		return failed("a resource limit", -err);
	if (l->user && (err = set_ids(l->user)) < 0)
		return failed("becoming the user", -err);
	if (chdir(l->cwd) < 0)
		return failed("the working directory", errno);
	umask(022);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	err = exec_along_path(l);
	return failed("the program", err);
}

pid_t launch(const struct launch *l, struct launch_error *error)
{
	volatile struct launch_error result = {0};
	pid_t pid = vfork();
	if (pid == 0) {
		struct launch_error e = prepare_and_exec(l);
		result.err = e.err;
		result.what = e.what;
		_exit(127);
	}
	int fork_err = errno;
	/* The child changed the ids of what was, until its exec, our memory: that may have made it dumpable again. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	*error = pid < 0 ? failed("a new process", fork_err) : failed(result.what, result.err);
	return pid < 0 || error->err ? -1 : pid;
}

/* Put a variable in, in the place of one with the same name. */
static bool put(struct environment *env, char *var)
{
	size_t name = strcspn(var, "=");
	if (name == 0 || !var[name])
		return false;
	int i = 0;
	while (i < env->n && strncmp(env->vars[i], var, name + 1) != 0)
		i++;
	if (i == STRINGS_MAX)
		return false;
	env->vars[i] = var;
	env->n += i == env->n;
	return true;
}

bool environment_add(struct environment *env, const uint8_t *body, size_t len)
{
	struct tlv t;
	for (size_t pos = 0; tlv_next(body, len, &pos, &t);)
		if (t.tag == TAG_ENV && !put(env, (char *)(uintptr_t)tlv_str(&t)))
			return false;
	return true;
}

static void put_default(struct environment *env, char *var)
{
	size_t name = strcspn(var, "=");
	for (int i = 0; i < env->n; i++)
		if (strncmp(env->vars[i], var, name + 1) == 0)
			return;
	put(env, var);
}

void environment_defaults(struct environment *env, const struct user *user)
{
	static char path[] = "PATH=" DEFAULT_PATH;
	snprintf(env->home, sizeof(env->home), "HOME=%s", user->home);
	snprintf(env->user, sizeof(env->user), "USER=%s", user->name);
	snprintf(env->logname, sizeof(env->logname), "LOGNAME=%s", user->name);
	put_default(env, path);
	put_default(env, env->home);
	if (user->name[0]) {
		put_default(env, env->user);
		put_default(env, env->logname);
	}
}
