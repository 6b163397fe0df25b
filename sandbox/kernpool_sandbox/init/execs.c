#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"
#include "tree.h"
#include "util.h"

#define RING_BYTES_MAX (16 << 20)

static struct exec *find(struct init *init, int32_t id)
{
	for (struct exec *e = init->execs; e; e = e->next)
		if (e->id == id && e->state != EXEC_ACKED)
			return e;
	return NULL;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void release(struct init *init, struct exec *e)
{
	struct exec **at = &init->execs;
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	init->nexecs--;
	close_fd(&e->report);
	close_fd(&e->stdin_fd);
	ring_close(&e->out[0]);
	ring_close(&e->out[1]);
	free(e);
}

/* --- start --- */

/* Arguments and environment are collected in the child, so that PID 1 itself stays small. */
static void collect(struct shim *shim, const struct init *init, const struct frame *f)
{
	static char *argv[STRINGS_MAX + 1];
	static struct environment environment;
	struct tlv t;
	int argc = 0;
	for (size_t pos = 0; tlv_next(f->body, f->body_len, &pos, &t);)
		if (t.tag == TAG_ARG && argc < STRINGS_MAX)
			argv[argc++] = (char *)(uintptr_t)tlv_str(&t);
	shim->launch.argv = argv;
	shim->environment = &environment;
	if (!environment_add(&environment, init->env, init->env_len) ||
	    !environment_add(&environment, f->body, f->body_len))
		shim->environment = NULL;
}

static _Noreturn void in_child(const struct init *init, const struct frame *f, int report, int in, int out, int err)
{
	struct shim shim = {
	    .report = report,
	    .user = frame_str(f, TAG_USER, ""),
	    .set_groups = init->plan->uid_count > 0,
	    .timeout_ms = frame_ms(f, TAG_TIMEOUT_MS, 0),
	    .launch = {.cwd = frame_str(f, TAG_CWD, "/"),
		       .stdin_fd = in,
		       .stdout_fd = out,
		       .stderr_fd = err,
		       .limits = &init->plan->limits},
	};
	collect(&shim, init, f);
	shim_main(&shim);
}

/* A pipe whose end on our side does not block: an end handed to the agent shares that with ours. */
static bool make_pipe(int pipe[2], int ours)
{
	return pipe2(pipe, O_CLOEXEC) == 0 && fcntl(pipe[ours], F_SETFL, O_NONBLOCK) == 0;
}

static int exec_start(struct init *init, const struct frame *f)
{
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1};
	struct exec *e = calloc(1, sizeof(*e));
	bool want_stdin = frame_u32(f, TAG_FLAGS, 0) & EXEC_STDIN;
	bool ok = e && (!want_stdin || make_pipe(in, 1)) && make_pipe(out, 0) && make_pipe(err, 0) &&
		  socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, report) == 0;
	pid_t shim = ok ? fork() : -1;
	if (shim == 0)
		in_child(init, f, report[1], want_stdin ? in[0] : 0, out[1], err[1]);
	int failed = errno;
	close_fd(&in[0]);
	close_fd(&out[1]);
	close_fd(&err[1]);
	close_fd(&report[1]);
	if (shim < 0) {
		close_fd(&in[1]);
		close_fd(&out[0]);
		close_fd(&err[0]);
		close_fd(&report[0]);
		free(e);
		return -failed;
	}
	size_t cap = (size_t)frame_u64(f, TAG_RING_BYTES, 0);
	cap = cap > RING_BYTES_MAX ? RING_BYTES_MAX : cap;
	*e = (struct exec){.next = init->execs,
			   .state = EXEC_STARTING,
			   .id = f->a,
			   .shim = shim,
			   .report = report[0],
			   .seq = f->seq,
			   .attached = true,
			   .stdin_fd = in[1],
			   .out = {{.fd = out[0], .cap = cap}, {.fd = err[0], .cap = cap}}};
	init->execs = e;
	init->nexecs++;
	return 0;
}

static void on_exec(struct init *init, const struct frame *f)
{
	struct tlv t = {.tag = 0};
	for (size_t pos = 0; t.tag != TAG_ARG && tlv_next(f->body, f->body_len, &pos, &t);)
		;
	int err = 0;
	if (f->a <= 0 || t.tag != TAG_ARG)
		err = -EINVAL;
	else if (find(init, f->a))
		err = -EEXIST;
	else if (init->nexecs >= EXECS_MAX)
		err = -EAGAIN;
	else
		err = exec_start(init, f);
	if (err < 0)
		init_reply(init, f, err, "starting a shim");
}

/* --- what shims tell --- */

static void started(struct init *init, struct exec *e, int32_t leader)
{
	e->state = EXEC_RUNNING;
	e->leader = leader;
	if (!e->attached) { /* the agent that asked is gone */
		close_fd(&e->stdin_fd);
		return;
	}
	struct out out;
	int fds[] = {e->out[0].fd, e->out[1].fd, e->stdin_fd};
	out_begin(&out, OP_EXEC, e->seq, leader, 0);
	init_send(init, &out, fds, e->stdin_fd < 0 ? 2 : 3);
	close_fd(&e->stdin_fd);
}

static void not_started(struct init *init, struct exec *e, int err, const char *what)
{
	struct frame f = {.op = OP_EXEC, .seq = e->seq};
	if (e->attached)
		init_reply(init, &f, -err, what);
	/* Forgotten, but for the shim that is still to be reaped. */
	e->state = EXEC_ACKED;
	e->attached = false;
}

static void ended(struct init *init, struct exec *e, const struct report *end)
{
	e->state = EXEC_ENDED;
	e->end = *end;
	e->told = false;
	execs_tell(init);
}

void execs_reports(struct init *init, struct exec *e)
{
	struct report r;
	while (e->report >= 0) {
		ssize_t n = recv(e->report, &r, sizeof(r), MSG_DONTWAIT);
		if (n < 0)
			return;
		if (n == 0) {
			close_fd(&e->report);
			return;
		}
		r.what[sizeof(r.what) - 1] = 0;
		if (r.kind == REPORT_STARTED)
			started(init, e, r.value);
		else if (r.kind == REPORT_FAILED)
			not_started(init, e, r.value, r.what);
		else
			ended(init, e, &r);
	}
}

bool execs_reaped(struct init *init, pid_t pid, int status)
{
	struct exec *e = init->execs;
	while (e && e->shim != pid)
		e = e->next;
	if (!e)
		return false;
	execs_reports(init, e);
	close_fd(&e->report);
	e->shim = 0;
	if (e->state == EXEC_STARTING)
		not_started(init, e, EAGAIN, "the shim was killed");
	if (e->state == EXEC_RUNNING) {
		struct report lost = {.kind = REPORT_ENDED, .value = SIGKILL, .cause = EXEC_LOST};
		ended(init, e, &lost);
	}
	if (e->state == EXEC_ACKED)
		release(init, e);
	if (WIFSIGNALED(status)) /* one that ends by itself has nothing left to leave us */
		execs_sweep(init);
	return true;
}

void execs_sweep(struct init *init)
{
	pid_t known[EXECS_MAX + HELPERS_MAX];
	size_t n = 0;
	for (struct exec *e = init->execs; e; e = e->next)
		if (e->shim)
			known[n++] = e->shim;
	for (int i = 0; i < HELPERS_MAX; i++)
		if (init->helpers[i].pid)
			known[n++] = init->helpers[i].pid;
	tree_kill_strays(known, n);
}

/* --- what the agent is told and asks --- */

static void put_usage(struct out *out, const struct report *r)
{
	uint64_t usage[] = {r->user_us, r->system_us, r->max_rss_kib};
	out_put(out, TAG_USAGE, usage, sizeof(usage));
}

/* Whoever reads of a failure wants to know; only here can it be asked, for the agent walks no path of ours. */
static bool disk_full(void)
{
	struct statfs fs;
	return statfs("/", &fs) == 0 && fs.f_blocks && !fs.f_bavail;
}

void execs_tell(struct init *init)
{
	for (struct exec *e = init->execs; e && init->control >= 0; e = e->next) {
		if (e->state != EXEC_ENDED || e->told)
			continue;
		struct out out;
		out_begin(&out, EV_EXEC_EXITED, 0, e->id, e->end.value);
		out_u32(&out, TAG_CAUSE, e->end.cause);
		put_usage(&out, &e->end);
		if (e->end.value && disk_full())
			out_u32(&out, TAG_FLAGS, EXITED_DISK_FULL);
		e->told = out_send(init->control, &out, NULL, 0) == 0;
		init->blocked = !e->told;
		if (init->blocked)
			return;
	}
}

void execs_detach(struct init *init)
{
	for (struct exec *e = init->execs; e; e = e->next) {
		e->attached = false;
		e->told = true; /* the next agent asks for the list */
	}
}

struct row {
	int32_t id, pid, status;
	uint32_t running, cause, zero;
	uint64_t user_us, system_us, max_rss_kib;
};

static void on_list(struct init *init, const struct frame *f)
{
	struct out out;
	out_begin(&out, OP_LIST, f->seq, 0, 0);
	for (struct exec *e = init->execs; e; e = e->next) {
		struct row row = {.id = e->id,
				  .pid = e->leader,
				  .status = e->end.value,
				  .running = e->state != EXEC_ENDED,
				  .cause = e->end.cause,
				  .user_us = e->end.user_us,
				  .system_us = e->end.system_us,
				  .max_rss_kib = e->end.max_rss_kib};
		if (e->state != EXEC_ACKED)
			out_put(&out, TAG_ROW, &row, sizeof(row));
	}
	init_send(init, &out, NULL, 0);
}

static void on_signal(struct init *init, const struct frame *f)
{
	struct exec *e = find(init, f->a);
	struct shim_signal s = {.sig = f->b, .tree = frame_u32(f, TAG_FLAGS, 0) & SIGNAL_TREE};
	bool lives = e && e->report >= 0 && (s.tree || e->state == EXEC_RUNNING);
	if (f->b < 0 || f->b > SIGRTMAX)
		init_reply(init, f, -EINVAL, "the signal");
	else if (!lives || send(e->report, &s, sizeof(s), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		init_reply(init, f, -ESRCH, "the exec");
	else
		init_reply(init, f, 0, NULL);
}

static void on_ack(struct init *init, const struct frame *f)
{
	struct exec *e = find(init, f->a);
	if (!e || e->state != EXEC_ENDED) {
		init_reply(init, f, e ? -EBUSY : -ENOENT, "the exec");
		return;
	}
	init_reply(init, f, 0, NULL);
	e->state = EXEC_ACKED;
	e->attached = false;
	for (int i = 0; i < 2; i++) {
		ring_taken(&e->out[i]);
		e->out[i].cap = 0;
	}
	if (!e->shim)
		release(init, e);
}

struct stream {
	uint32_t flags, zero;
	uint64_t kept, dropped, drained;
};

/* Describe one stream and add its descriptors; the memfd's number is kept to be closed here. */
static bool describe(struct out *out, struct ring *r, int fds[], int *nfds, int *memfd)
{
	struct stream s = {.kept = ring_kept(r), .dropped = ring_dropped(r), .drained = r->drained};
	if (r->fd >= 0) {
		s.flags |= STREAM_HAS_FD;
		fds[(*nfds)++] = r->fd;
	}
	if (s.kept) {
		*memfd = ring_memfd(r);
		if (*memfd < 0)
			return false;
		s.flags |= STREAM_HAS_KEPT;
		fds[(*nfds)++] = *memfd;
	}
	return out_put(out, TAG_STREAM, &s, sizeof(s));
}

static void on_reattach(struct init *init, const struct frame *f)
{
	struct exec *e = find(init, f->a);
	struct out out;
	int fds[4], nfds = 0, memfd[2] = {-1, -1};
	if (!e || e->state == EXEC_STARTING) {
		init_reply(init, f, e ? -EBUSY : -ENOENT, "the exec");
		return;
	}
	out_begin(&out, OP_REATTACH, f->seq, e->leader, 0);
	bool ok = true;
	for (int i = 0; i < 2 && ok; i++)
		ok = describe(&out, &e->out[i], fds, &nfds, &memfd[i]);
	if (!ok) {
		init_reply(init, f, -ENOMEM, "the kept output");
	} else if (init_send(init, &out, fds, nfds)) {
		e->attached = true;
		ring_taken(&e->out[0]);
		ring_taken(&e->out[1]);
	}
	close_fd(&memfd[0]);
	close_fd(&memfd[1]);
}

void exec_request(struct init *init, struct frame *f)
{
	switch (f->op) {
	case OP_EXEC:
		on_exec(init, f);
		break;
	case OP_LIST:
		on_list(init, f);
		break;
	case OP_SIGNAL:
		on_signal(init, f);
		break;
	case OP_ACK:
		on_ack(init, f);
		break;
	case OP_REATTACH:
		on_reattach(init, f);
		break;
	}
}
