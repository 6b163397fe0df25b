#define _GNU_SOURCE
#include "setup.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "init.h"
#include "launch.h"
#include "mounts.h"
#include "seccomp.h"
#include "sys.h"
#include "tree.h"
#include "util.h"

static int end_fd = -1;

_Noreturn void setup_fail(const char *what, const char *target, int err)
{
	char detail[400];
	snprintf(detail, sizeof(detail), "%s%s%s: %s", what, target[0] ? " " : "", target, strerror(err));
	end_record(end_fd, "setup_failed", 0, detail);
	_exit(EXIT_SETUP);
}

static void check(bool ok, const char *what)
{
	if (!ok)
		setup_fail(what, "", errno);
}

/* We are still the spawner's user here, who may write to the cgroup's files. A cgroup namespace begins where we are. */
static void join_cgroups(const struct cgroups *cgroups)
{
	for (int i = 0; i < cgroups->n; i++) {
		if (write(cgroups->fd[i], "0", 1) < 0)
			setup_fail("joining the cgroup", cgroups->path[i], errno);
		close(cgroups->fd[i]);
	}
}

/* Wait until the spawner has written our id maps; it sends the detached mounts that only it can make. */
static int wait_for_maps(int sync, int fds[SOURCES_MAX])
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int) * SOURCES_MAX)];
	} control;
	char go;
	struct iovec iov = {&go, 1};
	struct msghdr msg = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(sync, &msg, MSG_CMSG_CLOEXEC);
	if (n != 1 || (msg.msg_flags & MSG_CTRUNC))
		setup_fail("waiting for the spawner", "", n < 0 ? errno : ECANCELED);
	close(sync);
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	if (!c)
		return 0;
	size_t bytes = c->cmsg_len - CMSG_LEN(0);
	memcpy(fds, CMSG_DATA(c), bytes);
	return (int)(bytes / sizeof(int));
}

static void become_root_inside(const struct sandbox_plan *plan)
{
	setpgid(0, 0);           /* Ctrl-C at a spawner in a terminal is not meant for us */
	if (plan->uid_count > 0) /* a single-id mapping denies it */
		check(syscall(SYS_setgroups, 0, NULL) == 0, "dropping groups");
	check(syscall(SYS_setresgid, 0, 0, 0) == 0, "becoming the sandbox's group");
	check(syscall(SYS_setresuid, 0, 0, 0) == 0, "becoming the sandbox's root");
	umask(022);
}

static void loopback_up(void)
{
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	check(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &ifr) == 0, "the loopback interface");
	close(fd);
}

/* From here on nothing inside can look into PID 1, gain privileges or ask the kernel for what a sandbox needs not. */
static void lock_down(const struct sandbox_plan *plan)
{
	drop_bounding();
	check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "becoming non-dumpable");
	if (!(plan->flags & PLAN_ALLOW_SETUID))
		check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	if (plan->flags & PLAN_SECCOMP)
		check(seccomp_install() == 0, "the seccomp filter");
}

_Noreturn void sandbox_main(struct sandbox *s)
{
	struct sandbox_plan *plan = s->plan;
	int sources[SOURCES_MAX], keep[3 + CGROUPS_MAX] = {s->listener, s->end, s->sync};
	end_fd = s->end;
	command_line_set(plan->id);
	memcpy(keep + 3, plan->cgroups.fd, sizeof(int) * (size_t)plan->cgroups.n);
	close_all_except(keep, 3 + (size_t)plan->cgroups.n);
	signal(SIGPIPE, SIG_DFL); /* what is ignored here would stay ignored in every program */
	join_cgroups(&plan->cgroups);
	/* A network namespace is what costs most of a sandbox: made here, it holds up neither the spawner nor its replies. */
	check(unshare(CLONE_NEWCGROUP | (plan->flags & PLAN_NETNS ? CLONE_NEWNET : 0)) == 0, "new namespaces");
	int nsources = wait_for_maps(s->sync, sources);
	become_root_inside(plan);
	mounts_build(plan, sources, nsources);
	check(tree_open(), "a plan must mount /proc; opening it");
	check(!plan->hostname || sethostname(plan->hostname, strlen(plan->hostname)) == 0, "the hostname");
	if (plan->flags & PLAN_NETNS)
		loopback_up();
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	check(null >= 0, "a plan must have /dev/null; opening it");
	stdio_from(null);
	close(null);
	lock_down(plan);
	init_run(plan, s->listener, s->end);
}
