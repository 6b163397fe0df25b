#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tree.h"
#include "util.h"

#define KILL_AGAIN_MS 10 /* between two passes over a tree that may be forking */

struct state {
	struct shim *shim;
	pid_t leader; /* 0 once reaped */
	bool timed_out, killing, asked;
	struct report end; /* of the leader, told when it may be told */
};

static void tell(const struct shim *shim, const struct report *report)
{
	/* PID 1 reads eagerly and a shim sends two of these in its life: the buffer cannot be full. */
	(void)!send(shim->report, report, sizeof(*report), MSG_NOSIGNAL);
}

static _Noreturn void give_up(const struct shim *shim, int err, const char *what)
{
	struct report r = {.kind = REPORT_FAILED, .value = err};
	snprintf(r.what, sizeof(r.what), "%s", what);
	tell(shim, &r);
	_exit(0);
}

static pid_t start(struct shim *shim)
{
	static struct user user;
	if (!shim->environment)
		give_up(shim, EINVAL, "the environment: an entry without a name");
	int err = user_resolve(shim->user, &user);
	if (err < 0)
		give_up(shim, -err, "the user");
	user.set_groups = shim->set_groups;
	environment_defaults(shim->environment, &user);
	shim->launch.user = &user;
	shim->launch.envp = shim->environment->vars;
	struct launch_error error;
	pid_t leader = launch(&shim->launch, &error);
	if (leader < 0)
		give_up(shim, error.err, error.what);
	return leader;
}

static uint64_t micros(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static void on_reaped(void *arg, int pid, int status, const struct rusage *usage)
{
	struct state *s = arg;
	if (pid != s->leader)
		return;
	s->leader = 0;
	s->end = (struct report){
	    .kind = REPORT_ENDED,
	    .value = status,
	    .cause = s->timed_out                      ? EXEC_TIMEOUT
		     : s->asked && WIFSIGNALED(status) ? EXEC_SIGNALLED
						       : EXEC_EXITED,
	    .user_us = micros(usage->ru_utime),
	    .system_us = micros(usage->ru_stime),
	    .max_rss_kib = (uint64_t)usage->ru_maxrss,
	};
}

/* A leader's end is told at once; one that a timeout brought, only when nothing of its tree is left. */
static void reap(struct state *s)
{
	bool left = tree_reap(on_reaped, s);
	if (!s->leader && s->end.kind && (!left || !s->timed_out)) {
		tell(s->shim, &s->end);
		s->end.kind = 0;
	}
	if (!left)
		_exit(0);
}

static void on_command(struct state *s)
{
	struct shim_signal command;
	ssize_t n = recv(s->shim->report, &command, sizeof(command), MSG_DONTWAIT);
	if (n == 0)
		_exit(0); /* PID 1 is gone, and with it in a moment all of us */
	if (n != sizeof(command))
		return;
	s->asked = s->asked || s->leader;
	if (command.tree && command.sig == SIGKILL)
		s->killing = true;
	else if (command.tree)
		tree_signal(command.sig);
	else if (s->leader)
		kill(s->leader, command.sig);
}

static int arm(uint64_t timeout_ms)
{
	if (!timeout_ms)
		return -1;
	int fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	struct itimerspec t = {
	    .it_value = {.tv_sec = (time_t)(timeout_ms / 1000), .tv_nsec = (long)(timeout_ms % 1000) * 1000000}};
	timerfd_settime(fd, 0, &t, NULL);
	return fd;
}

static int child_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

_Noreturn void shim_main(struct shim *shim)
{
	struct launch *l = &shim->launch;
	int keep[] = {shim->report, tree_fd(), l->stdin_fd, l->stdout_fd, l->stderr_fd};
	close_all_except(keep, COUNT(keep));
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	int signals = child_signals(), timer = arm(shim->timeout_ms);
	struct state s = {.shim = shim, .leader = start(shim)};
	int streams[] = {l->stdin_fd, l->stdout_fd, l->stderr_fd};
	for (size_t i = 0; i < COUNT(streams); i++)
		if (streams[i] > 2)
			close(streams[i]);
	tell(shim, &(struct report){.kind = REPORT_STARTED, .value = s.leader});
	for (;;) {
		struct pollfd fds[] = {
		    {signals, POLLIN, 0}, {shim->report, POLLIN, 0}, {s.killing ? -1 : timer, POLLIN, 0}};
		poll(fds, COUNT(fds), s.killing ? KILL_AGAIN_MS : -1);
		struct signalfd_siginfo info;
		while (read(signals, &info, sizeof(info)) > 0)
			;
		if (fds[2].revents) {
			s.timed_out = s.leader; /* after its leader an exec has no deadline */
			s.killing = s.leader;
			timer = -1;
		}
		if (fds[1].revents)
			on_command(&s);
		if (s.killing)
			tree_signal(SIGKILL);
		reap(&s);
	}
}
