#define _GNU_SOURCE
#include "spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "birth.h"
#include "children.h"
#include "frame.h"
#include "place.h"
#include "sys.h"
#include "tree.h"
#include "util.h"

#define CLIENTS_MAX 32
#define TEMPLATES_MAX 64
#define REQUESTS_PER_TURN 64

struct client {
	int fd; /* -1: free */
	bool greeted;
};

struct template {
	char id[65];
	uint8_t *body;
	size_t len;
	uint64_t used; /* grows with every use: the least used one makes room */
};

struct spawner {
	const struct spawner_options *options;
	struct place place;
	int listener, signals;
	struct client clients[CLIENTS_MAX];
	struct children children;
	struct template templates[TEMPLATES_MAX];
	uint64_t uses;
	bool stop;
};

static uint8_t packet[FRAME_BYTES_MAX];

/* --- answers --- */

static void drop(struct client *c)
{
	close(c->fd);
	c->fd = -1;
}

static void answer(struct client *c, const struct out *out, const int *fds, int nfds)
{
	if (out_send_within(c->fd, out, fds, nfds, ANSWER_WAIT_MS) < 0)
		drop(c); /* it does not read its answers */
}

static void reply(struct client *c, const struct frame *f, int32_t a, const char *detail)
{
	struct out out;
	out_begin(&out, f->op, f->seq, a, 0);
	if (a < 0)
		out_str(&out, TAG_DETAIL, strlen(detail) < 4096 ? detail : "a path that is too long");
	answer(c, &out, NULL, 0);
}

static void tell_ended(void *arg, const struct child *c, int status)
{
	struct spawner *s = arg;
	struct out out;
	out_begin(&out, EV_CHILD_ENDED, 0, (int32_t)c->kind, status);
	out_str(&out, TAG_ID, c->id);
	for (int i = 0; i < CLIENTS_MAX; i++)
		if (s->clients[i].fd >= 0 && s->clients[i].greeted)
			out_send(s->clients[i].fd, &out, NULL, 0);
}

/* --- templates --- */

static struct template *template_by_id(struct spawner *s, const char *id)
{
	for (int i = 0; i < TEMPLATES_MAX; i++)
		if (s->templates[i].body && strcmp(s->templates[i].id, id) == 0)
			return &s->templates[i];
	return NULL;
}

static struct template *template_slot(struct spawner *s, const char *id)
{
	struct template *slot = template_by_id(s, id);
	for (int i = 0; !slot && i < TEMPLATES_MAX; i++)
		if (!s->templates[i].body)
			slot = &s->templates[i];
	if (!slot) {
		slot = &s->templates[0];
		for (int i = 1; i < TEMPLATES_MAX; i++)
			if (s->templates[i].used < slot->used)
				slot = &s->templates[i];
	}
	return slot;
}

static void on_define(struct spawner *s, struct client *c, const struct frame *f)
{
	static struct sandbox_plan plan;
	const char *id = frame_str(f, TAG_TEMPLATE, ""), *why = "the template's id";
	plan = (struct sandbox_plan){.id = NULL};
	int err = valid_id(id) ? plan_decode(&plan, f->body, f->body_len, &why) : -EINVAL;
	uint8_t *body = err ? NULL : malloc(f->body_len + 1);
	if (!body) {
		reply(c, f, err ? err : -ENOMEM, why);
		return;
	}
	struct template *slot = template_slot(s, id);
	free(slot->body);
	snprintf(slot->id, sizeof(slot->id), "%s", id);
	slot->body = memcpy(body, f->body, f->body_len);
	slot->len = f->body_len;
	slot->used = ++s->uses;
	reply(c, f, 0, "");
}

/* --- requests --- */

static int make_sandbox(struct spawner *s, const struct frame *f, struct born *born, const char **why)
{
	static struct sandbox_plan plan;
	plan = (struct sandbox_plan){.id = NULL};
	const char *name = frame_str(f, TAG_TEMPLATE, NULL);
	struct template *template = name ? template_by_id(s, name) : NULL;
	*why = "the template is not known";
	int err = name && !template ? -ENOENT : 0;
	if (template) {
		template->used = ++s->uses;
		err = plan_decode(&plan, template->body, template->len, why);
	}
	err = err ? err : plan_decode(&plan, f->body, f->body_len, why);
	return err ? err : birth_sandbox(&s->place, &plan, born, why);
}

static int make_job(struct spawner *s, const struct frame *f, struct born *born, const char **why)
{
	static struct job_plan plan;
	plan = (struct job_plan){.id = NULL};
	int err = job_decode(&plan, f, why);
	return err ? err : birth_job(&s->place, &plan, born, why);
}

static void on_spawn(struct spawner *s, struct client *c, const struct frame *f)
{
	bool sandbox = f->op == OP_SPAWN;
	const char *why = "";
	struct born born = {.pid = -1, .pidfd = -1};
	int err = sandbox ? make_sandbox(s, f, &born, &why) : make_job(s, f, &born, &why);
	/* One that was cloned but could not be provided for ends by itself, and is reaped like any other. */
	if (born.pid > 0)
		children_add(&s->children, sandbox ? KIND_SANDBOX : KIND_JOB, frame_str(f, TAG_ID, ""), &born);
	if (err) {
		reply(c, f, err, why);
	} else {
		struct out out;
		out_begin(&out, f->op, f->seq, born.pid, 0);
		answer(c, &out, &born.pidfd, 1);
	}
	if (born.pidfd >= 0)
		close(born.pidfd);
}

static void on_kill(struct spawner *s, struct client *c, const struct frame *f)
{
	reply(c, f, children_kill(&s->children, &s->place, frame_str(f, TAG_ID, "")), "nothing with this id lives");
}

static void on_list(struct spawner *s, struct client *c, const struct frame *f)
{
	struct out out;
	int32_t last = f->a;
	bool more = false;
	out_begin(&out, OP_LIST, f->seq, 0, 0);
	for (struct child *child = s->children.first; child && !more; child = child->next) {
		struct {
			uint32_t kind, pid;
			char id[65];
		} row = {.kind = child->kind, .pid = (uint32_t)child->pid};
		memcpy(row.id, child->id, sizeof(row.id));
		if (child->serial <= f->a)
			continue;
		more = !out_put(&out, TAG_ROW, &row, 8 + strlen(row.id) + 1);
		last = more ? last : child->serial;
	}
	memcpy(out.buf + 8, &last, sizeof(last)); /* where the next page begins */
	out.buf[12] = more;
	answer(c, &out, NULL, 0);
}

static void on_hello(struct spawner *s, struct client *c, const struct frame *f)
{
	struct out out;
	bool speaks = f->a <= PROTO_MAX && f->b >= PROTO_MIN;
	int self = sys_pidfd_open(getpid());
	out_begin(&out, OP_HELLO, f->seq, speaks ? PROTO_MAX : -EPROTONOSUPPORT, 0);
	out_u32(&out, TAG_KIND, KIND_SPAWNER);
	out_str(&out, TAG_BOOT_ID, boot_id());
	out_u32(&out, TAG_PRIVILEGED, s->options->ceiling.privileged);
	out_str(&out, TAG_STATE_DIR, s->options->state);
	c->greeted = speaks;
	answer(c, &out, &self, self < 0 ? 0 : 1);
	close(self);
}

static void on_request(struct spawner *s, struct client *c, const struct frame *f)
{
	if (!c->greeted && f->op != OP_HELLO) {
		drop(c);
		return;
	}
	switch (f->op) {
	case OP_HELLO:
		on_hello(s, c, f);
		break;
	case OP_PING:
		reply(c, f, 0, "");
		break;
	case OP_DEFINE:
		on_define(s, c, f);
		break;
	case OP_SPAWN:
	case OP_SPAWN_JOB:
		on_spawn(s, c, f);
		break;
	case OP_KILL:
		on_kill(s, c, f);
		break;
	case OP_LIST:
		on_list(s, c, f);
		break;
	case OP_STOP:
		s->stop = true;
		reply(c, f, 0, "");
		break;
	default:
		reply(c, f, -ENOSYS, "the request is not known here");
	}
}

static void read_client(struct spawner *s, struct client *c)
{
	struct frame f;
	for (int i = 0; i < REQUESTS_PER_TURN && c->fd >= 0 && !s->stop; i++) {
		int got = frame_recv(c->fd, &f, packet, sizeof(packet));
		if (got == -EAGAIN)
			return;
		if (got != 1) {
			drop(c);
			return;
		}
		on_request(s, c, &f);
		frame_close_fds(&f);
		/* A job's environment may hold secrets, and the next child starts as a copy of us. */
		explicit_bzero((void *)(uintptr_t)f.body, f.body_len);
	}
}

static void accept_client(struct spawner *s)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	uid_t owner = s->options->ceiling.owner;
	bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
		     (peer.uid == 0 || peer.uid == geteuid() || peer.uid == owner);
	for (int i = 0; i < CLIENTS_MAX && known; i++) {
		if (s->clients[i].fd < 0) {
			s->clients[i] = (struct client){.fd = fd};
			return;
		}
	}
	close(fd);
}

/* A spawner started by hand has a terminal, which nothing it makes may reach. Once here, rather than by a session for
 * every sandbox: a session costs a scheduling group of its own. */
static void lose_terminal(void)
{
	int tty = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (tty < 0)
		return;
	signal(SIGHUP, SIG_IGN); /* a session leader that lets go of its terminal is sent one */
	ioctl(tty, TIOCNOTTY);
	signal(SIGHUP, SIG_DFL);
	close(tty);
}

static int block_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void on_signals(struct spawner *s)
{
	struct signalfd_siginfo info;
	while (read(s->signals, &info, sizeof(info)) > 0)
		s->stop = s->stop || info.ssi_signo != SIGCHLD;
	children_reap(&s->children, &s->place, tell_ended, s);
}

int spawner_run(const struct spawner_options *options)
{
	static struct spawner s;
	s.options = options;
	s.children.last = &s.children.first;
	for (int i = 0; i < CLIENTS_MAX; i++)
		s.clients[i].fd = -1;
	umask(0077);
	lose_terminal();
	s.listener = place_prepare(&s.place, options);
	if (s.listener < 0 || !tree_open())
		return 1;
	if (options->daemon) {
		pid_t pid = fork();
		if (pid != 0)
			return pid < 0;
		setsid();
	}
	s.signals = block_signals();
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	while (!s.stop) {
		struct pollfd fds[2 + CLIENTS_MAX] = {{s.listener, POLLIN, 0}, {s.signals, POLLIN, 0}};
		for (int i = 0; i < CLIENTS_MAX; i++)
			fds[2 + i] = (struct pollfd){s.clients[i].fd, POLLIN, 0};
		poll(fds, COUNT(fds), -1);
		if (fds[1].revents)
			on_signals(&s);
		for (int i = 0; i < CLIENTS_MAX; i++)
			if (fds[2 + i].revents && s.clients[i].fd >= 0)
				read_client(&s, &s.clients[i]);
		if (fds[0].revents)
			accept_client(&s);
	}
	unlink(options->socket);
	if (options->runtime)
		rmdir(options->runtime); /* when nothing of it is needed any more */
	return 0;
}
