#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "joblog.h"
#include "launch.h"
#include "sys.h"
#include "tree.h"
#include "util.h"

#define LEFTOVER_GRACE_MS 2000 /* for what a job that ended by itself has left running */
#define KILL_AGAIN_MS 10
#define HINT_EVERY_MS 10
#define READS_PER_TURN 16

enum state {
	JOB_STARTING, /* no step has started */
	JOB_RUNNING,  /* a step's leader runs */
	JOB_ENDING,   /* the rest of the tree is being ended */
	JOB_ENDED,    /* nothing is left */
};

static const char *const state_names[] = {"starting", "running", "ending", "ended"};

struct job {
	const struct supervisor *s;
	const struct job_plan *plan;
	enum state state;
	int step;
	pid_t leader; /* of the step; 0: none */
	int status;   /* of the last leader */
	enum job_cause cause;
	char detail[256];
	struct environment env;
	struct user user;
	int signals, timer, control, candidate;
	int output[2]; /* what the steps write; both ends ours */
	struct joblog log;
	uint64_t hinted;                  /* log offset the agent was told */
	int64_t hint_at;                  /* not before, for the next hint */
	int64_t step_at, job_at, kill_at; /* deadlines on boot_ms(); 0: none */
	int64_t started_unix_ms, ended_unix_ms;
	struct rusage usage;
};

static uint8_t packet[FRAME_BYTES_MAX];

/* --- the record --- */

static uint64_t micros(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static int format_record(const struct job *job, char *text, size_t cap)
{
	const char *step = job->step >= 0 ? job->plan->steps[job->step].name : "";
	return snprintf(
	    text, cap,
	    "state %s\nboot_id %s\npid %d\nstep %d\nstep_name %.64s\nstarted_unix_ms %lld\nended_unix_ms %lld\n"
	    "cause %d\nstatus %d\ndetail %s\nlog_bytes %llu\nlog_lost_bytes %llu\nuser_us %llu\nsystem_us %llu\n"
	    "max_rss_kib %ld\n",
	    state_names[job->state], boot_id(), getpid(), job->step, step, (long long)job->started_unix_ms,
	    (long long)job->ended_unix_ms, job->cause, job->status, job->detail, (unsigned long long)job->log.end,
	    (unsigned long long)job->log.lost, (unsigned long long)micros(job->usage.ru_utime),
	    (unsigned long long)micros(job->usage.ru_stime), job->usage.ru_maxrss);
}

/* Replace the record as a whole. The last one must be on disk before anybody hears of the end. */
static void save(const struct job *job)
{
	char text[2048];
	int len = format_record(job, text, sizeof(text));
	int fd = openat(job->s->dir, "status.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return;
	bool written = fchown(fd, job->s->owner, (gid_t)-1) == 0 && write_all(fd, text, (size_t)len) == 0;
	if (job->state == JOB_ENDED)
		fdatasync(fd);
	close(fd);
	if (written)
		renameat(job->s->dir, "status.new", job->s->dir, "status");
}

/* --- the agent --- */

static void send_event(struct job *job, const struct out *out)
{
	if (job->control >= 0 && out_send(job->control, out, NULL, 0) < 0) {
		close(job->control); /* it comes back, and reads the record */
		job->control = -1;
	}
}

static void hint_log(struct job *job)
{
	int64_t now = boot_ms();
	if (job->log.end == job->hinted || now < job->hint_at)
		return;
	struct out out;
	out_begin(&out, EV_LOG_GREW, 0, 0, 0);
	out_u64(&out, TAG_OFFSET, job->log.end);
	send_event(job, &out);
	job->hinted = job->log.end;
	job->hint_at = now + HINT_EVERY_MS;
}

static void reply(struct job *job, const struct frame *f, int32_t a, const char *detail)
{
	struct out out;
	out_begin(&out, f->op, f->seq, a, 0);
	if (a < 0)
		out_str(&out, TAG_DETAIL, detail);
	send_event(job, &out);
}

/* --- deadlines --- */

static int64_t earlier(int64_t a, int64_t b)
{
	return !a ? b : !b ? a : a < b ? a : b;
}

static void arm(const struct job *job)
{
	int64_t at = earlier(job->step_at, earlier(job->job_at, job->kill_at));
	struct itimerspec t = {.it_value = {.tv_sec = at / 1000, .tv_nsec = at % 1000 * 1000000}};
	timerfd_settime(job->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static int64_t in_ms(uint64_t ms)
{
	return ms ? boot_ms() + (int64_t)ms : 0;
}

/* --- the steps --- */

static void drain(struct job *job, int reads)
{
	static char chunk[64 * 1024];
	ssize_t n;
	while (reads-- > 0 && (n = read(job->output[0], chunk, sizeof(chunk))) > 0)
		joblog_write(&job->log, chunk, (size_t)n);
}

/* Nothing is left: write it down, tell, go. */
static _Noreturn void finish(struct job *job)
{
	char name[80];
	drain(job, 1 << 20);
	job->state = JOB_ENDED;
	job->ended_unix_ms = unix_ms();
	save(job);
	job->hint_at = 0;
	hint_log(job);
	struct out out;
	out_begin(&out, EV_JOB_EXITED, 0, (int32_t)job->cause, job->status);
	send_event(job, &out);
	snprintf(name, sizeof(name), "%s.sock", job->plan->id);
	unlinkat(job->s->jobs, name, 0);
	_exit(0);
}

/* From now on everything that runs is to end: asked by SIGTERM, and after the grace period made to. */
static void end(struct job *job, enum job_cause cause, uint64_t grace_ms)
{
	if (job->state == JOB_ENDING) {
		job->kill_at = earlier(job->kill_at, boot_ms() + (int64_t)grace_ms);
		arm(job);
		return;
	}
	job->state = JOB_ENDING;
	job->cause = cause;
	job->step_at = job->job_at = 0;
	job->kill_at = boot_ms() + (int64_t)grace_ms;
	save(job);
	if (grace_ms)
		tree_signal(SIGTERM);
	arm(job);
}

static void start_step(struct job *job)
{
	static char *argv[STRINGS_MAX + 1];
	const struct step *step = &job->plan->steps[++job->step];
	const uint8_t *p = step->args;
	int argc = 0;
	for (const char *arg; argc < STRINGS_MAX && (arg = packed_str(&p, step->args_end));)
		argv[argc++] = (char *)(uintptr_t)arg;
	argv[argc] = NULL;
	struct launch l = {.argv = argv,
			   .envp = job->env.vars,
			   .cwd = job->plan->cwd,
			   .stdin_fd = 0,
			   .stdout_fd = job->output[1],
			   .stderr_fd = job->output[1],
			   .cgroups = &job->plan->cgroups,
			   .user = job->plan->has_user && job->s->switch_user ? &job->user : NULL,
			   .limits = &job->plan->limits};
	struct launch_error error;
	pid_t leader = launch(&l, &error);
	if (leader < 0) {
		snprintf(job->detail, sizeof(job->detail), "step %.64s: %s: %s", step->name, error.what,
			 strerror(error.err));
		end(job, JOB_START_FAILED, LEFTOVER_GRACE_MS);
		return;
	}
	job->leader = leader;
	job->state = JOB_RUNNING;
	job->step_at = in_ms(step->timeout_ms);
	arm(job);
	save(job);
	struct out out;
	out_begin(&out, EV_STEP_STARTED, 0, job->step, leader);
	send_event(job, &out);
}

static void on_reaped(void *arg, int pid, int status, const struct rusage *usage)
{
	struct job *job = arg;
	if (pid != job->leader)
		return;
	job->leader = 0;
	job->status = status;
	timeradd(&job->usage.ru_utime, &usage->ru_utime, &job->usage.ru_utime);
	timeradd(&job->usage.ru_stime, &usage->ru_stime, &job->usage.ru_stime);
	if (usage->ru_maxrss > job->usage.ru_maxrss)
		job->usage.ru_maxrss = usage->ru_maxrss;
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void reap(struct job *job)
{
	bool left = tree_reap(on_reaped, job);
	if (job->state == JOB_RUNNING && !job->leader) {
		if (job->status == 0 && job->step + 1 < job->plan->nsteps)
			start_step(job);
		else if (left) /* the tree ends with its leader, after a chance to end well */
			end(job, JOB_EXITED, at_most(job->plan->grace_ms, LEFTOVER_GRACE_MS));
		else
			finish(job);
	} else if (job->state == JOB_ENDING && !left) {
		finish(job);
	}
}

static void on_deadline(struct job *job)
{
	int64_t now = boot_ms();
	bool late = (job->step_at && now >= job->step_at) || (job->job_at && now >= job->job_at);
	if (late && job->state == JOB_RUNNING) {
		snprintf(job->detail, sizeof(job->detail), "the deadline of %s",
			 job->step_at && now >= job->step_at ? "a step" : "the job");
		end(job, JOB_TIMEOUT, job->plan->grace_ms);
	}
	arm(job);
}

/* --- requests --- */

static void on_hello(struct job *job, const struct frame *f)
{
	struct out out;
	bool speaks = f->a <= PROTO_MAX && f->b >= PROTO_MIN;
	int self = sys_pidfd_open(getpid());
	if (job->control >= 0)
		close(job->control); /* the newest agent wins */
	job->control = job->candidate;
	job->candidate = -1;
	out_begin(&out, OP_HELLO, f->seq, speaks ? PROTO_MAX : -EPROTONOSUPPORT, 0);
	out_u32(&out, TAG_KIND, KIND_JOB);
	out_str(&out, TAG_ID, job->plan->id);
	out_str(&out, TAG_BOOT_ID, boot_id());
	out_send(job->control, &out, &self, self < 0 ? 0 : 1);
	close(self);
	job->hinted = 0;
	if (!speaks) {
		close(job->control);
		job->control = -1;
	}
}

static void on_stop(struct job *job, const struct frame *f)
{
	if (job->state != JOB_ENDING)
		snprintf(job->detail, sizeof(job->detail), "%.200s", frame_str(f, TAG_DETAIL, ""));
	job->detail[strcspn(job->detail, "\n")] = 0;
	reply(job, f, 0, "");
	end(job, JOB_STOPPED, frame_ms(f, TAG_GRACE_MS, job->plan->grace_ms));
}

static void on_signal(struct job *job, const struct frame *f)
{
	bool tree = frame_u32(f, TAG_FLAGS, 0) & SIGNAL_TREE;
	if (f->b < 0 || f->b > SIGRTMAX)
		reply(job, f, -EINVAL, "the signal");
	else if (tree ? tree_signal(f->b) == 0 : !job->leader || kill(job->leader, f->b) < 0)
		reply(job, f, -ESRCH, "no process of the job runs");
	else
		reply(job, f, 0, "");
}

static void on_request(struct job *job, const struct frame *f)
{
	switch (f->op) {
	case OP_PING:
		reply(job, f, 0, "");
		break;
	case OP_SIGNAL:
		on_signal(job, f);
		break;
	case OP_JOB_STOP:
		on_stop(job, f);
		break;
	default:
		reply(job, f, -ENOSYS, "the request is not known here");
	}
}

static void read_agent(struct job *job, int *fd)
{
	struct frame f;
	int got = frame_recv(*fd, &f, packet, sizeof(packet));
	if (got == -EAGAIN)
		return;
	bool hello = got == 1 && f.op == OP_HELLO && fd == &job->candidate;
	if (got != 1 || (fd == &job->candidate && !hello)) {
		close(*fd);
		*fd = -1;
	} else if (hello) {
		on_hello(job, &f);
	} else {
		on_request(job, &f);
	}
	if (got == 1)
		frame_close_fds(&f);
}

static void accept_agent(struct job *job)
{
	int fd = accept4(job->s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0 && job->candidate >= 0)
		close(job->candidate);
	job->candidate = fd >= 0 ? fd : job->candidate;
}

/* --- the loop --- */

static void on_signals(struct job *job)
{
	struct signalfd_siginfo info;
	while (read(job->signals, &info, sizeof(info)) > 0)
		if (info.ssi_signo == SIGTERM) {
			snprintf(job->detail, sizeof(job->detail), "killed through the spawner");
			end(job, JOB_STOPPED, 0);
		}
}

static int wait_ms(const struct job *job)
{
	int64_t now = boot_ms();
	if (job->kill_at && now >= job->kill_at)
		return KILL_AGAIN_MS;
	if (job->log.end != job->hinted && job->control >= 0)
		return now < job->hint_at ? (int)(job->hint_at - now) : 0;
	return -1;
}

static void turn(struct job *job)
{
	struct pollfd fds[] = {{job->signals, POLLIN, 0},   {job->timer, POLLIN, 0},   {job->output[0], POLLIN, 0},
			       {job->candidate, POLLIN, 0}, {job->control, POLLIN, 0}, {job->s->listener, POLLIN, 0}};
	poll(fds, COUNT(fds), wait_ms(job));
	if (fds[2].revents)
		drain(job, READS_PER_TURN);
	if (fds[0].revents)
		on_signals(job);
	if (fds[1].revents)
		on_deadline(job);
	if (job->kill_at && boot_ms() >= job->kill_at)
		tree_signal(SIGKILL);
	reap(job);
	if (fds[4].revents && job->control >= 0)
		read_agent(job, &job->control);
	if (fds[3].revents && job->candidate >= 0)
		read_agent(job, &job->candidate);
	if (fds[5].revents)
		accept_agent(job);
	hint_log(job);
}

static void prepare(struct job *job)
{
	const struct job_plan *plan = job->plan;
	sigset_t set;
	int keep[6 + CGROUPS_MAX] = {job->s->listener, job->s->dir, job->s->jobs, tree_fd()};
	memcpy(keep + 4, plan->cgroups.fd, sizeof(int) * (size_t)plan->cgroups.n);
	close_all_except(keep, 4 + (size_t)plan->cgroups.n);
	setsid();
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_SETMASK, &set, NULL);
	job->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	job->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	stdio_from(null);
	close(null);
	if (pipe2(job->output, O_CLOEXEC) < 0 || fcntl(job->output[0], F_SETFL, O_NONBLOCK) < 0)
		_exit(1);
	job->user = (struct user){.uid = plan->uid, .gid = plan->gid, .ngroups = plan->ngroups, .set_groups = true};
	memcpy(job->user.groups, plan->groups, sizeof(plan->groups));
}

_Noreturn void supervisor_main(const struct supervisor *s)
{
	static struct job job;
	job = (struct job){.s = s,
			   .plan = s->plan,
			   .step = -1,
			   .control = -1,
			   .candidate = -1,
			   .started_unix_ms = unix_ms(),
			   .log = {.dir = s->dir,
				   .fd = -1,
				   .segment_bytes = s->plan->segment_bytes,
				   .bytes_max = s->plan->log_bytes_max,
				   .owner = s->owner}};
	prepare(&job);
	save(&job);
	job.job_at = in_ms(s->plan->timeout_ms);
	if (environment_add(&job.env, s->plan->body, s->plan->body_len)) {
		start_step(&job);
	} else {
		snprintf(job.detail, sizeof(job.detail), "the environment: an entry without a name, or too many");
		end(&job, JOB_START_FAILED, 0);
	}
	listen(s->listener, 64); /* now we, not the spawner, are the peer that the kernel names */
	for (;;)
		turn(&job);
}
