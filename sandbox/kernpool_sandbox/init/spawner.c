#define _GNU_SOURCE
#include "spawner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "birth.h"
#include "frame.h"
#include "sys.h"
#include "tree.h"
#include "util.h"

#define CLIENTS_MAX 32
#define TEMPLATES_MAX 64
#define REQUESTS_PER_TURN 64

struct child {
	struct child *next;
	enum kind kind;
	char id[65];
	pid_t pid;
	int end; /* a sandbox's end record */
	bool killed;
	int32_t serial; /* grows along the list */
};

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
	struct child *children, **last;
	int32_t serial;
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
	if (out_send(c->fd, out, fds, nfds) < 0)
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

/* --- children --- */

static void add_child(struct spawner *s, enum kind kind, const char *id, const struct born *born)
{
	struct child *c = calloc(1, sizeof(*c));
	if (!c) { /* it lives by itself; we only cannot say how it ends */
		if (born->end >= 0)
			close(born->end);
		return;
	}
	*c = (struct child){.kind = kind, .pid = born->pid, .end = born->end, .serial = ++s->serial};
	snprintf(c->id, sizeof(c->id), "%s", id);
	*s->last = c;
	s->last = &c->next;
}

static struct child *child_by_id(struct spawner *s, const char *id)
{
	for (struct child *c = s->children; c; c = c->next)
		if (strcmp(c->id, id) == 0)
			return c;
	return NULL;
}

/* PID 1 writes how it ended, unless it was killed. */
static void complete_record(int end, bool killed, int status)
{
	struct stat st;
	if (fstat(end, &st) == 0 && st.st_size == 0)
		end_record(end, killed ? "killed" : "died", status, "");
}

static void tell_ended(struct spawner *s, const struct child *c, int status)
{
	struct out out;
	out_begin(&out, EV_CHILD_ENDED, 0, (int32_t)c->kind, status);
	out_str(&out, TAG_ID, c->id);
	for (int i = 0; i < CLIENTS_MAX; i++)
		if (s->clients[i].fd >= 0 && s->clients[i].greeted)
			out_send(s->clients[i].fd, &out, NULL, 0);
}

static void bury(struct spawner *s, struct child **at, int status)
{
	struct child *c = *at;
	char path[128];
	int dir = c->kind == KIND_SANDBOX ? s->place.sandboxes : s->place.jobs;
	if (c->end >= 0) {
		complete_record(c->end, c->killed, status);
		close(c->end);
	}
	unlink(path_in(dir, c->id, ".sock", path));
	*at = c->next;
	if (s->last == &c->next)
		s->last = at;
	tell_ended(s, c, status);
	free(c);
}

/* What a supervisor that was killed has left behind comes to us, as the nearest subreaper. */
static void kill_strays(struct spawner *s)
{
	size_t n = 0;
	for (struct child *c = s->children; c; c = c->next)
		n++;
	pid_t *known = calloc(n + 1, sizeof(*known));
	n = 0;
	for (struct child *c = s->children; c && known; c = c->next)
		known[n++] = c->pid;
	if (known)
		tree_kill_strays(known, n);
	free(known);
}

static void on_child_signal(struct spawner *s)
{
	int status;
	bool strays = false;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
		struct child **at = &s->children;
		while (*at && (*at)->pid != pid)
			at = &(*at)->next;
		strays = strays || !*at || ((*at)->kind == KIND_JOB && status != 0);
		if (*at)
			bury(s, at, status);
	}
	if (strays)
		kill_strays(s);
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
	struct born born = {.pid = -1, .pidfd = -1, .end = -1};
	int err = sandbox ? make_sandbox(s, f, &born, &why) : make_job(s, f, &born, &why);
	/* One that was cloned but could not be provided for ends by itself, and is reaped like any other. */
	if (born.pid > 0)
		add_child(s, sandbox ? KIND_SANDBOX : KIND_JOB, frame_str(f, TAG_ID, ""), &born);
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

/* The pid of whoever listens on a socket of ours that an earlier spawner has bound, held by a pidfd while the connection
 * shows that it still lives. */
static int pidfd_by_socket(int dir, const char *id)
{
	char path[128];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t len = sizeof(peer);
	strcpy(address.sun_path, path_in(dir, id, ".sock", path));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), pidfd = -1;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 1)
		pidfd = sys_pidfd_open(peer.pid);
	struct pollfd hung_up = {fd, POLLIN, 0};
	if (pidfd >= 0 && poll(&hung_up, 1, 0) != 0) {
		close(pidfd);
		pidfd = -1;
	}
	if (fd >= 0)
		close(fd);
	return pidfd;
}

static int kill_adopted(struct spawner *s, const char *id)
{
	char path[128];
	int pidfd = pidfd_by_socket(s->place.sandboxes, id), sig = SIGKILL;
	if (pidfd < 0) {
		pidfd = pidfd_by_socket(s->place.jobs, id);
		sig = SIGTERM;
	}
	if (pidfd < 0)
		return -ESRCH;
	int err = sys_pidfd_send_signal(pidfd, sig) < 0 ? -errno : 0;
	close(pidfd);
	int end = sig == SIGKILL && !err ? open(path_in(s->place.sandboxes, id, ".end", path), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (end >= 0) {
		complete_record(end, true, 0);
		close(end);
	}
	return err;
}

/* A supervisor takes SIGTERM for "end all of it at once". */
static void on_kill(struct spawner *s, struct client *c, const struct frame *f)
{
	const char *id = frame_str(f, TAG_ID, "");
	struct child *child = child_by_id(s, id);
	int err = valid_id(id) ? 0 : -EINVAL;
	if (child) {
		child->killed = true;
		kill(child->pid, child->kind == KIND_JOB ? SIGTERM : SIGKILL);
	} else if (!err) {
		err = kill_adopted(s, id);
	}
	reply(c, f, err, "nothing with this id lives");
}

static void on_list(struct spawner *s, struct client *c, const struct frame *f)
{
	struct out out;
	int32_t last = f->a;
	bool more = false;
	out_begin(&out, OP_LIST, f->seq, 0, 0);
	for (struct child *child = s->children; child && !more; child = child->next) {
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

/* --- start --- */

static int fail(const char *what, const char *path)
{
	fprintf(stderr, "kp-init spawner: %s %s: %s\n", what, path, strerror(errno));
	return -1;
}

static int make_dir(const char *path, mode_t mode, uid_t owner)
{
	if (mkdir(path, mode) < 0 && errno != EEXIST)
		return fail("cannot make the directory", path);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fchmod(fd, mode) < 0 || fchown(fd, owner, (gid_t)-1) < 0)
		return fail("cannot use the directory", path);
	return fd;
}

/* Sockets that nobody listens on any more are all that a sandbox may leave when the spawner before us died first. */
static void sweep(int dir)
{
	DIR *list = fdopendir(openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	for (struct dirent *e; list && (e = readdir(list));) {
		char path[128];
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		size_t len = strlen(e->d_name);
		if (len <= 5 || len > 70 || strcmp(e->d_name + len - 5, ".sock") != 0)
			continue;
		strcpy(address.sun_path, path_in(dir, e->d_name, "", path));
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno == ECONNREFUSED)
			unlink(path);
		close(fd);
	}
	if (list)
		closedir(list);
}

static int bind_socket(const char *path, uid_t owner)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return fail("cannot listen on", path);
	}
	strcpy(address.sun_path, path);
	unlink(path); /* the lock says that nobody else can be listening */
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || lchown(path, owner, (gid_t)-1) < 0 ||
	    listen(fd, 64) < 0)
		return fail("cannot listen on", path);
	return fd;
}

static int prepare(struct spawner *s, char *staging, size_t cap)
{
	const struct spawner_options *o = s->options;
	uid_t owner = o->ceiling.owner;
	int dir = make_dir(o->state, 0700, owner);
	int lock = dir < 0 ? -1 : openat(dir, "spawner.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (dir < 0 || lock < 0)
		return dir < 0 ? -1 : fail("cannot lock", o->state);
	if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
		fail("another spawner works in", o->state);
		exit(EXIT_LOCKED);
	}
	char path[4096];
	snprintf(path, sizeof(path), "%s/s", o->state);
	s->place.sandboxes = make_dir(path, 0700, owner);
	snprintf(path, sizeof(path), "%s/j", o->state);
	s->place.jobs = make_dir(path, 0700, owner);
	snprintf(staging, cap, "%s/mnt", o->state);
	int mnt = make_dir(staging, 0755, (uid_t)-1);
	if (s->place.sandboxes < 0 || s->place.jobs < 0 || mnt < 0)
		return -1;
	close(mnt);
	s->place.staging = staging;
	sweep(s->place.sandboxes);
	sweep(s->place.jobs);
	s->listener = bind_socket(o->socket, owner);
	return s->listener;
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
	on_child_signal(s);
}

int spawner_run(const struct spawner_options *options)
{
	static struct spawner s;
	static char staging[4096];
	s.options = options;
	s.place.ceiling = &options->ceiling;
	s.last = &s.children;
	for (int i = 0; i < CLIENTS_MAX; i++)
		s.clients[i].fd = -1;
	umask(0077);
	if (!tree_open() || prepare(&s, staging, sizeof(staging)) < 0)
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
	return 0;
}
