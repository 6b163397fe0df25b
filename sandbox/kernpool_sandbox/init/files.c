/* File operations inside a sandbox. PID 1 opens no path of a user: a helper does, forked for each operation, as the
 * asked user, with a deadline. It answers the agent itself; only when it dies before that, PID 1 does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"
#include "launch.h"
#include "sys.h"
#include "util.h"

#define CHUNK_BYTES (64 * 1024)
#define DEPTH_MAX 512 /* of a tree to remove */

struct job {
	int op, data; /* where bytes go or come from */
	const char *path, *to;
	uint64_t offset, limit, moved;
	mode_t mode;
	bool parents, recursive;
	struct itimerval patience; /* without progress */
};

static void progress(const struct job *job)
{
	setitimer(ITIMER_REAL, &job->patience, NULL); /* its SIGALRM ends us, and PID 1 answers ETIMEDOUT */
}

/* Open without hanging on a FIFO, following no /proc link into other processes. */
static int open_path(const char *path, int flags, mode_t mode)
{
	struct kp_open_how how = {.flags = (uint64_t)flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
				  .mode = flags & O_CREAT ? mode : 0,
				  .resolve = KP_RESOLVE_NO_MAGICLINKS};
	int fd = sys_openat2(AT_FDCWD, path, &how);
	return fd < 0 ? -errno : fd;
}

/* Only a regular file, and none of /proc: there this helper's own memory would be a file like any other. */
static int open_regular(const char *path, int flags, mode_t mode)
{
	struct stat st;
	struct statfs fs;
	int fd = open_path(path, flags, mode);
	if (fd < 0)
		return fd;
	int err = 0;
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		err = -errno;
	else if (S_ISDIR(st.st_mode))
		err = -EISDIR;
	else if (!S_ISREG(st.st_mode))
		err = -EINVAL;
	else if (fs.f_type == PROC_SUPER_MAGIC)
		err = -EACCES;
	if (err < 0)
		close(fd);
	return err < 0 ? err : fd;
}

static int make_parents(const char *path)
{
	char part[4096];
	if (strlen(path) >= sizeof(part))
		return -ENAMETOOLONG;
	strcpy(part, path);
	for (char *slash = part; (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return 0;
}

static int copy(struct job *job, int from, int to)
{
	static char chunk[CHUNK_BYTES];
	while (job->moved < job->limit) {
		uint64_t left = job->limit - job->moved;
		ssize_t n = read(from, chunk, left < sizeof(chunk) ? (size_t)left : sizeof(chunk));
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		progress(job);
		int err = write_all(to, chunk, (size_t)n);
		if (err < 0)
			return err;
		progress(job);
		job->moved += (uint64_t)n;
	}
	return 0;
}

static int do_read(struct job *job)
{
	int fd = open_regular(job->path, O_RDONLY, 0);
	if (fd < 0)
		return fd;
	if (lseek(fd, (off_t)job->offset, SEEK_SET) < 0)
		return -errno;
	return copy(job, fd, job->data);
}

static int do_write(struct job *job)
{
	int err = job->parents ? make_parents(job->path) : 0;
	int fd = err < 0 ? err : open_regular(job->path, O_WRONLY | O_CREAT, job->mode);
	if (fd < 0)
		return fd;
	if (job->offset == 0 ? ftruncate(fd, 0) < 0 : lseek(fd, (off_t)job->offset, SEEK_SET) < 0)
		return -errno;
	return copy(job, job->data, fd);
}

/* One entry: u32 length of what follows, u32 mode, uid, gid, zero, u64 size, i64 mtime ns, name, NUL, link, NUL. */
static int put_entry(struct job *job, int dir, const char *path, const char *name)
{
	struct {
		uint32_t length, mode, uid, gid, zero;
		uint32_t size[2], mtime[2];
	} head = {0};
	char record[sizeof(head) + 256 + 4097 + 1], link[4097] = "";
	struct stat st;
	if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode) && readlinkat(dir, path, link, sizeof(link) - 1) < 0)
		return -errno;
	uint64_t size = (uint64_t)st.st_size;
	int64_t mtime = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	size_t name_len = strlen(name) + 1, link_len = strlen(link) + 1, len = sizeof(head);
	head.length = (uint32_t)(sizeof(head) - 4 + name_len + link_len);
	head.mode = st.st_mode;
	head.uid = st.st_uid;
	head.gid = st.st_gid;
	memcpy(head.size, &size, sizeof(size));
	memcpy(head.mtime, &mtime, sizeof(mtime));
	if (name_len > 256)
		return -ENAMETOOLONG;
	memcpy(record, &head, sizeof(head));
	memcpy(record + len, name, name_len);
	memcpy(record + len + name_len, link, link_len);
	len += name_len + link_len;
	job->moved += len;
	progress(job);
	return write_all(job->data, record, len);
}

static int do_list(struct job *job)
{
	int fd = open_path(job->path, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	DIR *dir = fdopendir(fd);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		int err = put_entry(job, fd, e->d_name, e->d_name);
		if (err < 0 && err != -ENOENT) /* one that went away meanwhile is none */
			return err;
	}
	return dir ? 0 : -ENOMEM;
}

static int do_stat(struct job *job)
{
	const char *name = strrchr(job->path, '/');
	return put_entry(job, AT_FDCWD, job->path, name && name[1] ? name + 1 : job->path);
}

static int do_mkdir(struct job *job)
{
	struct stat st;
	int err = job->parents ? make_parents(job->path) : 0;
	if (err < 0 || mkdir(job->path, job->mode) == 0)
		return err;
	err = -errno;
	bool there = err == -EEXIST && job->parents && stat(job->path, &st) == 0 && S_ISDIR(st.st_mode);
	return there ? 0 : err;
}

/* Remove name and, when it is a directory, all in it, never following a link. */
static int remove_tree(struct job *job, int dir, const char *name, int depth)
{
	progress(job);
	if (unlinkat(dir, name, 0) == 0)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (depth == DEPTH_MAX)
		return -ENAMETOOLONG;
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	int err = list ? 0 : -errno;
	for (struct dirent *e; err == 0 && list && (e = readdir(list));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			err = remove_tree(job, fd, e->d_name, depth + 1);
	if (list)
		closedir(list);
	return err < 0 ? err : unlinkat(dir, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

static int do_remove(struct job *job)
{
	if (job->recursive)
		return remove_tree(job, AT_FDCWD, job->path, 0);
	return remove(job->path) < 0 ? -errno : 0;
}

static int do_move(struct job *job)
{
	int err = job->parents ? make_parents(job->to) : 0;
	return err < 0 ? err : rename(job->path, job->to) < 0 ? -errno : 0;
}

static int run(struct job *job)
{
	switch (job->op) {
	case FILE_READ:
		return do_read(job);
	case FILE_WRITE:
		return do_write(job);
	case FILE_LIST:
		return do_list(job);
	case FILE_STAT:
		return do_stat(job);
	case FILE_MKDIR:
		return do_mkdir(job);
	case FILE_REMOVE:
		return do_remove(job);
	case FILE_MOVE:
		return do_move(job);
	default:
		return -EINVAL;
	}
}

static struct job read_job(const struct frame *f, int data)
{
	uint64_t ms = frame_ms(f, TAG_TIMEOUT_MS, 30000);
	uint32_t flags = frame_u32(f, TAG_FLAGS, 0);
	return (struct job){
	    .op = f->a,
	    .data = data,
	    .path = frame_str(f, TAG_PATH, ""),
	    .to = frame_str(f, TAG_TO, ""),
	    .offset = frame_u64(f, TAG_OFFSET, 0),
	    .limit = frame_u64(f, TAG_LIMIT, UINT64_MAX),
	    .mode = frame_u32(f, TAG_MODE, 0644) & 07777,
	    .parents = flags & FILE_PARENTS,
	    .recursive = flags & FILE_RECURSIVE,
	    .patience = {.it_value = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000) * 1000}},
	};
}

static _Noreturn void helper_main(const struct init *init, const struct frame *f, int data)
{
	struct job job = read_job(f, data);
	struct user user;
	int keep[] = {init->control, data};
	close_all_except(keep, COUNT(keep));
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN); /* an agent that stops reading is an EPIPE to report */
	if (data >= 0)
		fcntl(data, F_SETFL, 0); /* we wait, whatever the agent does with its end */
	progress(&job);
	umask(0);
	int err = user_resolve(frame_str(f, TAG_USER, ""), &user);
	user.set_groups = init->plan->uid_count > 0;
	if (err == 0)
		err = become(&user);
	if (err == 0)
		err = run(&job);
	struct out out;
	out_begin(&out, OP_FILE, f->seq, err, 0);
	out_u64(&out, TAG_MOVED, job.moved);
	if (err < 0)
		out_str(&out, TAG_DETAIL, job.path);
	out_send_within(init->control, &out, NULL, 0, ANSWER_WAIT_MS);
	_exit(0);
}

static struct helper *free_slot(struct init *init)
{
	for (int i = 0; i < HELPERS_MAX; i++)
		if (!init->helpers[i].pid)
			return &init->helpers[i];
	return NULL;
}

static bool needs_data(int op)
{
	return op == FILE_READ || op == FILE_WRITE || op == FILE_LIST || op == FILE_STAT;
}

void file_request(struct init *init, struct frame *f)
{
	struct helper *helper = free_slot(init);
	if (frame_str(f, TAG_PATH, "")[0] != '/' || needs_data(f->a) != (f->nfds == 1)) {
		init_reply(init, f, -EINVAL, "the file operation");
		return;
	}
	pid_t pid = helper ? fork() : -1;
	if (pid == 0)
		helper_main(init, f, f->nfds ? f->fds[0] : -1);
	if (pid < 0)
		init_reply(init, f, -EAGAIN, "too many file operations at once");
	else
		*helper = (struct helper){.pid = pid, .seq = f->seq, .control = init->control};
}

bool files_reaped(struct init *init, pid_t pid, int status)
{
	for (int i = 0; i < HELPERS_MAX; i++) {
		struct helper *h = &init->helpers[i];
		if (h->pid != pid)
			continue;
		struct frame f = {.op = OP_FILE, .seq = h->seq};
		bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
		if (WIFSIGNALED(status) && h->control == init->control)
			init_reply(init, &f, late ? -ETIMEDOUT : -EIO, late ? "no progress" : "the helper was killed");
		h->pid = 0;
		return true;
	}
	return false;
}
