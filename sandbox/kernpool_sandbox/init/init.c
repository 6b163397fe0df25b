#define _GNU_SOURCE
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "setup.h"
#include "sys.h"
#include "tree.h"
#include "util.h"

#define REQUESTS_PER_TURN 16

static uint8_t packet[FRAME_BYTES_MAX];

static _Noreturn void finish(const struct init *init, const char *cause, int code, const char *detail)
{
	end_record(init->end, cause, 0, detail);
	_exit(code); /* and the kernel kills everything else in this pid namespace */
}

/* --- deadlines --- */

static int64_t earlier(int64_t a, int64_t b)
{
	return !a ? b : !b ? a : a < b ? a : b;
}

static void arm(const struct init *init)
{
	int64_t at = earlier(init->ttl_at, earlier(init->parked_at, init->orphan_at));
	struct itimerspec t = {.it_value = {.tv_sec = at / 1000, .tv_nsec = at % 1000 * 1000000}};
	timerfd_settime(init->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void check_deadlines(const struct init *init)
{
	int64_t now = boot_ms();
	if (init->ttl_at && now >= init->ttl_at)
		finish(init, "ttl", EXIT_TTL, "");
	if (init->parked_at && now >= init->parked_at)
		finish(init, "ttl", EXIT_TTL, "parked and never claimed");
	if (init->orphan_at && now >= init->orphan_at)
		finish(init, "orphaned", EXIT_ORPHANED, "");
	arm(init);
}

/* --- the control socket --- */

static void drop_control(struct init *init)
{
	shutdown(init->control, SHUT_RDWR); /* helpers hold copies: let the other side see the end now */
	close(init->control);
	init->control = -1;
	init->blocked = false;
	for (int i = 0; i < HELPERS_MAX; i++)
		init->helpers[i].control = -1;
	execs_detach(init);
	if (!init->claimed)
		init->orphan_at = boot_ms() + ORPHAN_MS;
	arm(init);
}

bool init_send(struct init *init, const struct out *out, const int *fds, int nfds)
{
	if (init->control < 0)
		return false;
	/* Many requests at once have many answers: an agent that reads gets them all, one that is stuck is dropped. */
	bool sent = out_send_within(init->control, out, fds, nfds, ANSWER_WAIT_MS) == 0;
	if (!sent)
		drop_control(init);
	return sent;
}

void init_reply(struct init *init, const struct frame *f, int32_t a, const char *detail)
{
	struct out out;
	out_begin(&out, f->op, f->seq, a, 0);
	if (a < 0 && detail)
		out_str(&out, TAG_DETAIL, detail);
	init_send(init, &out, NULL, 0);
}

static void say_hello(struct init *init, const struct frame *f)
{
	struct out out;
	int self = sys_pidfd_open(getpid());
	out_begin(&out, OP_HELLO, f->seq, PROTO_MAX, 0);
	out_u32(&out, TAG_KIND, KIND_SANDBOX);
	out_str(&out, TAG_ID, init->plan->id);
	out_str(&out, TAG_BOOT_ID, boot_id());
	out_u32(&out, TAG_CLAIMED, init->claimed);
	out_u32(&out, TAG_COUNT, (uint32_t)init->nexecs);
	if (init->ttl_at) {
		int64_t left = init->ttl_at - boot_ms();
		out_u64(&out, TAG_TTL_LEFT_MS, left > 0 ? (uint64_t)left : 0);
	}
	init_send(init, &out, &self, self < 0 ? 0 : 1);
	close(self);
}

/* The newest agent wins: the one before gets end-of-file, and its execs wait to be taken over. */
static void on_hello(struct init *init, const struct frame *f)
{
	if (f->a > PROTO_MAX || f->b < PROTO_MIN) {
		struct out out;
		out_begin(&out, OP_HELLO, f->seq, -EPROTONOSUPPORT, 0);
		out_send(init->candidate, &out, NULL, 0);
		close(init->candidate);
		init->candidate = -1;
		return;
	}
	if (init->control >= 0)
		drop_control(init);
	execs_detach(init);
	init->control = init->candidate;
	init->candidate = -1;
	init->orphan_at = 0;
	arm(init);
	say_hello(init, f);
}

static void accept_candidate(struct init *init)
{
	int fd = accept4(init->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (init->candidate >= 0)
		close(init->candidate);
	init->candidate = fd;
}

static void read_candidate(struct init *init)
{
	struct frame f;
	int got = frame_recv(init->candidate, &f, packet, sizeof(packet));
	if (got == -EAGAIN)
		return;
	if (got == 1 && f.op == OP_HELLO) {
		on_hello(init, &f);
	} else {
		close(init->candidate);
		init->candidate = -1;
	}
	if (got == 1)
		frame_close_fds(&f);
}

/* --- requests --- */

/* Nothing of a user has run yet, so this path is still as the plan made it. */
static void new_machine_id(const uint8_t entropy[16])
{
	char text[34];
	for (size_t i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", entropy[i]);
	text[32] = '\n';
	int fd = open("/etc/machine-id", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	write_all(fd, text, 33);
	close(fd);
}

static void use_entropy(const struct frame *f)
{
	struct tlv t;
	for (size_t pos = 0; tlv_next(f->body, f->body_len, &pos, &t);)
		if (t.tag == TAG_ENTROPY && t.len >= 16)
			new_machine_id(t.data);
}

static bool remember_env(struct init *init, const struct frame *f)
{
	init->env = malloc(f->body_len + 1);
	if (!init->env)
		return false;
	memcpy(init->env, f->body, f->body_len);
	init->env_len = f->body_len;
	return true;
}

static int set_ttl(struct init *init, const struct frame *f)
{
	uint64_t ttl = frame_u64(f, TAG_TTL_MS, 0);
	if (ttl == 0 || ttl > DURATION_MS_MAX)
		return -EINVAL;
	init->ttl_at = boot_ms() + (int64_t)ttl;
	arm(init);
	return 0;
}

static int on_claim(struct init *init, const struct frame *f)
{
	const char *token = frame_str(f, TAG_TOKEN, ""), *hostname = frame_str(f, TAG_HOSTNAME, "");
	uint64_t ttl = frame_u64(f, TAG_TTL_MS, 0);
	if (!token[0] || strlen(token) >= sizeof(init->token) || ttl == 0 || ttl > DURATION_MS_MAX)
		return -EINVAL;
	if (init->claimed)
		return strcmp(init->token, token) == 0 ? set_ttl(init, f) : -EBUSY;
	if (hostname[0] && sethostname(hostname, strlen(hostname)) < 0)
		return -errno;
	if (!remember_env(init, f))
		return -ENOMEM;
	use_entropy(f);
	strcpy(init->token, token);
	init->claimed = true;
	init->parked_at = 0;
	return set_ttl(init, f);
}

/* Begin a TCP connection inside; the agent waits for its end. */
static int on_connect(struct init *init, const struct frame *f)
{
	const char *host = frame_str(f, TAG_PATH, "127.0.0.1");
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->a)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)f->a)};
	bool is_v4 = inet_pton(AF_INET, host, &v4.sin_addr) == 1;
	if (f->a <= 0 || f->a > 65535 || (!is_v4 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1))
		return -EINVAL;
	int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	int err =
	    is_v4 ? connect(fd, (struct sockaddr *)&v4, sizeof(v4)) : connect(fd, (struct sockaddr *)&v6, sizeof(v6));
	if (err < 0 && errno != EINPROGRESS) {
		err = -errno;
		close(fd);
		return err;
	}
	struct out out;
	out_begin(&out, OP_CONNECT, f->seq, 0, 0);
	init_send(init, &out, &fd, 1);
	close(fd);
	return 1; /* answered */
}

static void on_request(struct init *init, struct frame *f)
{
	switch (f->op) {
	case OP_PING:
		init_reply(init, f, 0, NULL);
		break;
	case OP_CLAIM:
		init_reply(init, f, on_claim(init, f), "the claim");
		break;
	case OP_EXTEND:
		init_reply(init, f, init->claimed ? set_ttl(init, f) : -EINVAL, "the time to live");
		break;
	case OP_EXEC:
	case OP_LIST:
	case OP_SIGNAL:
	case OP_ACK:
	case OP_REATTACH:
		exec_request(init, f);
		break;
	case OP_FILE:
		file_request(init, f);
		break;
	case OP_CONNECT: {
		int err = on_connect(init, f);
		if (err <= 0)
			init_reply(init, f, err, "the connection");
		break;
	}
	case OP_SHUTDOWN:
		init_reply(init, f, 0, NULL);
		finish(init, "shutdown", EXIT_SHUTDOWN, frame_str(f, TAG_DETAIL, ""));
	default:
		init_reply(init, f, -ENOSYS, "the request is not known here");
	}
}

static void read_control(struct init *init)
{
	struct frame f;
	for (int i = 0; i < REQUESTS_PER_TURN && init->control >= 0; i++) {
		int got = frame_recv(init->control, &f, packet, sizeof(packet));
		if (got == -EAGAIN)
			return;
		if (got != 1) {
			drop_control(init);
			return;
		}
		on_request(init, &f);
		frame_close_fds(&f);
	}
}

/* --- the loop --- */

static void reap(struct init *init)
{
	struct signalfd_siginfo info;
	while (read(init->signals, &info, sizeof(info)) > 0)
		;
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid <= 0)
			return;
		/* A stray is left only by a shim that was killed; its own children come to us next. */
		if (!execs_reaped(init, pid, status) && !files_reaped(init, pid, status))
			execs_sweep(init);
	}
}

enum { SLOT_LISTENER, SLOT_SIGNALS, SLOT_TIMER, SLOT_CANDIDATE, SLOT_CONTROL, SLOT_EXECS };

static size_t list_fds(const struct init *init, struct pollfd *fds)
{
	size_t n = SLOT_EXECS;
	fds[SLOT_LISTENER] = (struct pollfd){init->listener, POLLIN, 0};
	fds[SLOT_SIGNALS] = (struct pollfd){init->signals, POLLIN, 0};
	fds[SLOT_TIMER] = (struct pollfd){init->timer, POLLIN, 0};
	fds[SLOT_CANDIDATE] = (struct pollfd){init->candidate, POLLIN, 0};
	fds[SLOT_CONTROL] = (struct pollfd){init->control, (short)(POLLIN | (init->blocked ? POLLOUT : 0)), 0};
	for (const struct exec *e = init->execs; e; e = e->next) {
		fds[n++] = (struct pollfd){e->report, POLLIN, 0};
		for (int i = 0; i < 2; i++)
			fds[n++] = (struct pollfd){e->attached ? -1 : e->out[i].fd, POLLIN, 0};
	}
	return n;
}

static void serve_execs(struct init *init, const struct pollfd *fds)
{
	size_t n = SLOT_EXECS;
	/* Nothing here takes a row away, so the list is still the one that was polled. */
	for (struct exec *e = init->execs; e; e = e->next) {
		if (fds[n++].revents)
			execs_reports(init, e);
		for (int i = 0; i < 2; i++)
			if (fds[n++].revents && !e->attached)
				ring_drain(&e->out[i]);
	}
}

_Noreturn void init_run(const struct sandbox_plan *plan, int listener, int end)
{
	static struct init init;
	static struct pollfd fds[SLOT_EXECS + 3 * EXECS_MAX];
	sigset_t set;
	init = (struct init){.plan = plan, .listener = listener, .end = end, .control = -1, .candidate = -1};
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	init.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	init.timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	init.orphan_at = boot_ms() + ORPHAN_MS;
	init.parked_at = plan->parked_ttl_ms ? boot_ms() + (int64_t)plan->parked_ttl_ms : 0;
	arm(&init);
	/* Listening anew makes us, not the spawner, the peer that the kernel names to whoever connects. */
	listen(listener, 64);
	for (;;) {
		poll(fds, list_fds(&init, fds), -1);
		if (fds[SLOT_TIMER].revents)
			check_deadlines(&init);
		serve_execs(&init, fds);
		if (fds[SLOT_SIGNALS].revents)
			reap(&init);
		if (fds[SLOT_CONTROL].revents & POLLOUT)
			execs_tell(&init);
		if (fds[SLOT_CONTROL].revents & ~POLLOUT && init.control >= 0)
			read_control(&init);
		if (fds[SLOT_CANDIDATE].revents)
			read_candidate(&init);
		if (fds[SLOT_LISTENER].revents)
			accept_candidate(&init);
	}
}
