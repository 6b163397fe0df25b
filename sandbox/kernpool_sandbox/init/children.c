#define _GNU_SOURCE
#include "children.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys.h"
#include "tree.h"
#include "util.h"

void children_add(struct children *all, enum kind kind, const char *id, const struct born *born)
{
	struct child *c = calloc(1, sizeof(*c));
	if (!c)
		return; /* it lives by itself; we only cannot say how it ends */
	*c = (struct child){.kind = kind, .pid = born->pid, .serial = ++all->serial};
	snprintf(c->id, sizeof(c->id), "%s", id);
	*all->last = c;
	all->last = &c->next;
}

static struct child *by_id(struct children *all, const char *id)
{
	for (struct child *c = all->first; c; c = c->next)
		if (strcmp(c->id, id) == 0)
			return c;
	return NULL;
}

/* PID 1 writes how it ended, unless it was killed. The record is not kept open: thousands may live. */
static void complete_record(const struct place *place, const char *id, bool killed, int status)
{
	char path[128];
	struct stat st;
	int fd = open(path_in(place->sandboxes, id, ".end", path), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return; /* nobody wants it any more */
	if (fstat(fd, &st) == 0 && st.st_size == 0)
		end_record(fd, killed ? "killed" : "died", status, "");
	close(fd);
}

static struct child *bury(struct children *all, const struct place *place, struct child **at, int status)
{
	struct child *c = *at;
	char path[128];
	int dir = c->kind == KIND_SANDBOX ? place->sandboxes : place->jobs;
	if (c->kind == KIND_SANDBOX)
		complete_record(place, c->id, c->killed, status);
	unlink(path_in(dir, c->id, ".sock", path));
	*at = c->next;
	if (all->last == &c->next)
		all->last = at;
	return c;
}

/* What a supervisor that was killed has left behind comes to us, as the nearest subreaper. */
static void kill_strays(const struct children *all)
{
	size_t n = 0;
	for (struct child *c = all->first; c; c = c->next)
		n++;
	pid_t *known = calloc(n + 1, sizeof(*known));
	n = 0;
	for (struct child *c = all->first; c && known; c = c->next)
		known[n++] = c->pid;
	if (known)
		tree_kill_strays(known, n);
	free(known);
}

void children_reap(struct children *all, const struct place *place, children_told *told, void *arg)
{
	int status;
	bool strays = false;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
		struct child **at = &all->first;
		while (*at && (*at)->pid != pid)
			at = &(*at)->next;
		strays = strays || !*at || ((*at)->kind == KIND_JOB && status != 0);
		if (!*at)
			continue;
		struct child *child = bury(all, place, at, status);
		told(arg, child, status);
		free(child);
	}
	if (strays)
		kill_strays(all);
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

static int kill_adopted(const struct place *place, const char *id)
{
	int pidfd = pidfd_by_socket(place->sandboxes, id), sig = SIGKILL;
	if (pidfd < 0) {
		pidfd = pidfd_by_socket(place->jobs, id);
		sig = SIGTERM;
	}
	if (pidfd < 0)
		return -ESRCH;
	int err = sys_pidfd_send_signal(pidfd, sig) < 0 ? -errno : 0;
	close(pidfd);
	if (sig == SIGKILL && !err)
		complete_record(place, id, true, 0);
	return err;
}

/* A supervisor takes SIGTERM for "end all of it at once". */
int children_kill(struct children *all, const struct place *place, const char *id)
{
	struct child *child = by_id(all, id);
	if (!child)
		return valid_id(id) ? kill_adopted(place, id) : -EINVAL;
	child->killed = true;
	return kill(child->pid, child->kind == KIND_JOB ? SIGTERM : SIGKILL) < 0 ? -errno : 0;
}
