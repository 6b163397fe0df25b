#define _GNU_SOURCE
#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys.h"
#include "util.h"

struct process {
	pid_t pid, parent;
	unsigned long long start; /* with the pid it names one process, not its successor */
	bool ours;
};

static int proc_fd = -1;

bool tree_open(void)
{
	proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return proc_fd >= 0;
}

int tree_fd(void)
{
	return proc_fd;
}

/* Read parent and start time from /proc/PID/stat; the name in it may hold anything, so count from its last ')'. */
static bool read_process(const char *pid, struct process *p)
{
	char path[32], text[1024];
	snprintf(path, sizeof(path), "%.20s/stat", pid);
	if (read_small(proc_fd, path, text, sizeof(text)) <= 0)
		return false;
	char *after = strrchr(text, ')'), state;
	p->pid = atoi(pid);
	p->ours = false;
	return after &&
	       sscanf(after + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		      &state, &p->parent, &p->start) == 3 &&
	       state != 'Z';
}

static size_t read_processes(struct process **list)
{
	size_t n = 0, cap = 0;
	int fd = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		if (n == cap) {
			cap = cap ? cap * 2 : 256;
			struct process *more = realloc(*list, cap * sizeof(**list));
			if (!more)
				break;
			*list = more;
		}
		n += read_process(e->d_name, &(*list)[n]);
	}
	if (dir)
		closedir(dir);
	return n;
}

static bool parent_is_ours(const struct process *list, size_t n, pid_t self, pid_t parent)
{
	if (parent == self)
		return true;
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == parent)
			return list[i].ours;
	return false;
}

/* Mark descendants until a pass finds no more: the list is in no order that parents come first. */
static void mark_descendants(struct process *list, size_t n)
{
	pid_t self = getpid();
	bool changed = true;
	while (changed) {
		changed = false;
		for (size_t i = 0; i < n; i++)
			if (!list[i].ours && parent_is_ours(list, n, self, list[i].parent))
				changed = list[i].ours = true;
	}
}

/* The pid may have been taken by another process since it was read: the pidfd pins whoever has it now. */
static bool signal_same(const struct process *p, int sig)
{
	char name[16];
	struct process now;
	int pidfd = sys_pidfd_open(p->pid);
	if (pidfd < 0)
		return false;
	snprintf(name, sizeof(name), "%d", p->pid);
	bool same = read_process(name, &now) && now.start == p->start;
	if (same)
		sys_pidfd_send_signal(pidfd, sig);
	close(pidfd);
	return same;
}

int tree_signal(int sig)
{
	struct process *list = NULL;
	size_t n = read_processes(&list);
	int found = 0;
	mark_descendants(list, n);
	for (size_t i = 0; i < n; i++)
		found += list[i].ours && signal_same(&list[i], sig);
	free(list);
	return found;
}

static bool contains(const pid_t *known, size_t n, pid_t pid)
{
	for (size_t i = 0; i < n; i++)
		if (known[i] == pid)
			return true;
	return false;
}

void tree_kill_strays(const pid_t *known, size_t n)
{
	struct process *list = NULL;
	size_t count = read_processes(&list);
	pid_t self = getpid();
	for (size_t i = 0; i < count; i++)
		if (list[i].parent == self && !contains(known, n, list[i].pid))
			signal_same(&list[i], SIGKILL);
	free(list);
}

bool tree_reap(void (*seen)(void *arg, int pid, int status, const struct rusage *usage), void *arg)
{
	for (;;) {
		int status;
		struct rusage usage;
		pid_t pid = wait4(-1, &status, WNOHANG, &usage);
		if (pid > 0)
			seen(arg, pid, status, &usage);
		else if (pid == 0 || errno != EINTR)
			return pid == 0;
	}
}
