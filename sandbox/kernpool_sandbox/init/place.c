#define _GNU_SOURCE
#include "place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

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
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail("cannot use the directory", path);
	if (st.st_uid != geteuid() && st.st_uid != owner) {
		errno = EPERM; /* somebody made it before us, to have what we put into it */
		return fail("does not belong to us:", path);
	}
	if (fchmod(fd, mode) < 0 || fchown(fd, owner, (gid_t)-1) < 0)
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

/* Where the sandboxes' sockets and records lie: `s` in the state directory, or a link there to a directory given. */
static int open_sandboxes(const struct spawner_options *o)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/s", o->state);
	if (!o->runtime)
		return make_dir(path, 0700, o->ceiling.owner);
	int dir = make_dir(o->runtime, 0700, o->ceiling.owner);
	if (dir < 0)
		return -1;
	if (unlink(path) < 0 && errno == EISDIR && rmdir(path) < 0)
		return make_dir(path, 0700, o->ceiling.owner); /* a spawner before us worked there, and some still live */
	if (symlink(o->runtime, path) < 0 || lchown(path, o->ceiling.owner, (gid_t)-1) < 0)
		return fail("cannot make the link", path);
	return dir;
}

static int lock_state(const struct spawner_options *o)
{
	int dir = make_dir(o->state, 0700, o->ceiling.owner);
	int lock = dir < 0 ? -1 : openat(dir, "spawner.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (dir < 0 || lock < 0)
		return dir < 0 ? -1 : fail("cannot lock", o->state);
	if (flock(lock, LOCK_EX | LOCK_NB) == 0)
		return lock;
	fail("another spawner works in", o->state);
	exit(EXIT_LOCKED);
}

int place_prepare(struct place *place, const struct spawner_options *o)
{
	char path[4096], staging[4096];
	if (lock_state(o) < 0)
		return -1;
	place->ceiling = &o->ceiling;
	place->sandboxes = open_sandboxes(o);
	snprintf(path, sizeof(path), "%s/j", o->state);
	place->jobs = make_dir(path, 0700, o->ceiling.owner);
	snprintf(staging, sizeof(staging), "%s/mnt", o->state);
	int mnt = make_dir(staging, 0755, (uid_t)-1);
	if (place->sandboxes < 0 || place->jobs < 0 || mnt < 0)
		return -1;
	/* The spawner lives in it, and so does each sandbox at first: an empty host directory, each in its own mount
	 * namespace, to mount its staging tmpfs on. */
	if (fchdir(mnt) < 0)
		return fail("cannot enter", staging);
	close(mnt);
	sweep(place->sandboxes);
	sweep(place->jobs);
	return bind_socket(o->socket, o->ceiling.owner);
}
