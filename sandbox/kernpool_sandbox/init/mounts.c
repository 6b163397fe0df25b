#define _GNU_SOURCE
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys.h"
#include "util.h"

#define HIDDEN_FLAGS (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define HIDDEN_ATTRS (KP_ATTR_RDONLY | KP_ATTR_NOSUID | KP_ATTR_NODEV | KP_ATTR_NOEXEC)

static const char *const device_names[] = {"null", "zero", "full", "random", "urandom", "tty"};

static void must(bool ok, const char *what, const char *target)
{
	if (!ok)
		setup_fail(what, target, errno);
}

uint64_t mount_attrs(const struct mount_op *op)
{
	return (op->flags & MOUNT_F_RDONLY ? KP_ATTR_RDONLY : 0U) | (op->flags & MOUNT_F_NOSUID ? KP_ATTR_NOSUID : 0U) |
	       (op->flags & MOUNT_F_NODEV ? KP_ATTR_NODEV : 0U) | (op->flags & MOUNT_F_NOEXEC ? KP_ATTR_NOEXEC : 0U);
}

/* --- outside: gather --- */

/* A new filesystem, with a size where there is one to set, as a detached mount. */
static int new_filesystem(const char *type, uint64_t size, unsigned attrs)
{
	char bytes[24];
	int fs = sys_fsopen(type);
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)size);
	must(fs >= 0 && (!size || sys_fsconfig(fs, KP_FSCONFIG_SET_STRING, "size", bytes) == 0) &&
		 sys_fsconfig(fs, KP_FSCONFIG_CMD_CREATE, NULL, NULL) == 0,
	     "a filesystem:", type);
	int mount = sys_fsmount(fs, attrs);
	must(mount >= 0, "mounting a filesystem:", type);
	close(fs);
	return mount;
}

/* Locked mounts below a path come along only as a whole, so a clone made inside is recursive. */
static int clone_tree(const char *path)
{
	int fd = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
	must(fd >= 0, "opening", path);
	return fd;
}

static void set_attrs(int tree, uint64_t attrs, const char *target)
{
	struct kp_mount_attr attr = {.attr_set = attrs};
	must(sys_mount_setattr(tree, AT_EMPTY_PATH | AT_RECURSIVE, &attr) == 0, "mount flags of", target);
}

struct gathering {
	const int *sources;
	int nsources, used, lowers, overlays;
};

/* The next host source: the detached mount that the spawner sent (flags and ids set), or our own clone. */
static int next_source(struct gathering *g, const char *path, uint64_t attrs)
{
	if (g->used < g->nsources)
		return g->sources[g->used++];
	int tree = clone_tree(path);
	if (attrs)
		set_attrs(tree, attrs, path);
	return tree;
}

/* The upper directory is what the target will look like: take mode and owner (where it is mapped) of the top layer. */
static void make_upper(const char *upper, const char *work, const char *top, const char *target)
{
	struct stat st;
	must(stat(top, &st) == 0 && mkdir(upper, 0755) == 0 && mkdir(work, 0755) == 0 &&
		 chmod(upper, st.st_mode & 07777) == 0,
	     "the upper directory of", target);
	(void)!chown(upper, st.st_uid, st.st_gid);
}

/* An overlay takes its layers by path, and only from mounts of our namespace: attach each under a short name. */
static int gather_overlay(struct gathering *g, const struct mount_op *op)
{
	char lowers[256] = "", top[16], upper[16], work[16];
	snprintf(top, sizeof(top), "l%d", g->lowers);
	const uint8_t *p = op->rest;
	for (const char *path; (path = packed_str(&p, op->rest_end));) {
		char name[16];
		snprintf(name, sizeof(name), "l%d", g->lowers++);
		int tree = next_source(g, path, 0);
		must(mkdir(name, 0700) == 0, "a place for a layer", path);
		must(sys_move_mount(tree, "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH) == 0, "attaching the layer",
		     path);
		close(tree);
		size_t len = strlen(lowers);
		snprintf(lowers + len, sizeof(lowers) - len, "%s%s", len ? ":" : "", name);
	}
	snprintf(upper, sizeof(upper), "u%d", g->overlays);
	snprintf(work, sizeof(work), "w%d", g->overlays++);
	make_upper(upper, work, top, op->target);
	int fs = sys_fsopen("overlay");
	must(fs >= 0 && sys_fsconfig(fs, KP_FSCONFIG_SET_STRING, "lowerdir", lowers) == 0 &&
		 sys_fsconfig(fs, KP_FSCONFIG_SET_STRING, "upperdir", upper) == 0 &&
		 sys_fsconfig(fs, KP_FSCONFIG_SET_STRING, "workdir", work) == 0 &&
		 sys_fsconfig(fs, KP_FSCONFIG_SET_FLAG, "userxattr", NULL) == 0 &&
		 sys_fsconfig(fs, KP_FSCONFIG_CMD_CREATE, NULL, NULL) == 0,
	     "an overlay for", op->target);
	int mount = sys_fsmount(fs, (unsigned)mount_attrs(op));
	must(mount >= 0, "mounting the overlay for", op->target);
	close(fs);
	return mount;
}

static void gather_devices(struct mount_op *op)
{
	for (size_t i = 0; i < COUNT(device_names); i++) {
		char path[32];
		snprintf(path, sizeof(path), "/dev/%s", device_names[i]);
		op->trees[i] = clone_tree(path);
	}
}

static void gather(struct gathering *g, struct mount_op *op)
{
	switch (op->kind) {
	case MOUNT_BIND:
		op->trees[0] = next_source(g, (const char *)op->rest, mount_attrs(op));
		break;
	case MOUNT_OVERLAY:
		op->trees[0] = gather_overlay(g, op);
		break;
	case MOUNT_DEV:
		gather_devices(op);
		break;
	case MOUNT_PROC: /* here, because the kernel gives a new one only to who sees a whole one */
		op->trees[0] = new_filesystem("proc", 0, KP_ATTR_NOSUID | KP_ATTR_NODEV | KP_ATTR_NOEXEC);
		break;
	case MOUNT_SYSFS:
		op->trees[0] = new_filesystem("sysfs", 0, HIDDEN_ATTRS);
		break;
	default:
		break;
	}
}

/* --- the change of root --- */

/* Stack the old root on the new one, and let it go at once: while it is there, ".." of "/" would lead to it. */
static void change_root(int new_root)
{
	int old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	must(old >= 0 && fchdir(new_root) == 0 && sys_pivot_root(".", ".") == 0, "changing the root", "");
	must(fchdir(old) == 0 && umount2(".", MNT_DETACH) == 0, "leaving the host's root", "");
	close(old);
	must(chdir("/") == 0, "entering the new root", "");
}

/* The root is the overlay of the second operation when its target is "/", else a directory of the staging tmpfs. */
static int attach_root(struct sandbox_plan *plan)
{
	struct mount_op *op = &plan->mounts[plan->nmounts > 1 ? 1 : 0];
	int root = -1;
	must(mkdir("root", 0755) == 0, "the root", "");
	if (op->kind == MOUNT_OVERLAY && strcmp(op->target, "/") == 0) {
		root = op->trees[0];
		op->trees[0] = -1;
	} else {
		root = clone_tree("root");
	}
	must(sys_move_mount(root, "", AT_FDCWD, "root", MOVE_MOUNT_F_EMPTY_PATH) == 0, "attaching the root", "");
	return root;
}

/* --- inside: put in place --- */

static void make_parents(const char *target)
{
	char path[4096];
	must(strlen(target) < sizeof(path), "a path that is too long:", target);
	strcpy(path, target);
	for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		must(mkdir(path, 0755) == 0 || errno == EEXIST, "the directory", path);
		*slash = '/';
	}
}

static void make_dir(const char *target, mode_t mode)
{
	if (mkdir(target, mode) == 0 || errno == EEXIST)
		return; /* most parents are there */
	make_parents(target);
	must(mkdir(target, mode) == 0 || errno == EEXIST, "the directory", target);
}

/* An empty file to mount on; where a link dangles, the file that it names. */
static void make_file(const char *target)
{
	int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
	must(fd >= 0, "the file", target);
	close(fd);
}

static void attach(int tree, const char *target)
{
	must(sys_move_mount(tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS) == 0,
	     "mounting on", target);
	close(tree);
}

static void place_bind(struct mount_op *op)
{
	struct stat from, to;
	must(fstat(op->trees[0], &from) == 0, "the source of", op->target);
	if (stat(op->target, &to) < 0) {
		make_parents(op->target);
		if (S_ISDIR(from.st_mode))
			must(mkdir(op->target, 0755) == 0, "the directory", op->target);
		else
			make_file(op->target);
	}
	attach(op->trees[0], op->target);
}

static void place_tmpfs(const char *target, unsigned long flags, uint64_t size, unsigned mode)
{
	char options[64];
	int n = snprintf(options, sizeof(options), "mode=%o", mode & 07777);
	if (size) /* a size of 0 would lift the kernel's own limit */
		snprintf(options + n, sizeof(options) - (size_t)n, ",size=%llu", (unsigned long long)size);
	make_dir(target, 0755);
	must(mount("tmpfs", target, "tmpfs", flags, options) == 0, "a tmpfs on", target);
}

static void place_dev(struct mount_op *op)
{
	static const char *const links[][2] = {{"pts/ptmx", "ptmx"},
					       {"/proc/self/fd", "fd"},
					       {"/proc/self/fd/0", "stdin"},
					       {"/proc/self/fd/1", "stdout"},
					       {"/proc/self/fd/2", "stderr"}};
	char path[256];
	must(strlen(op->target) < 200, "a path that is too long:", op->target);
	place_tmpfs(op->target, MS_NOSUID | MS_NOEXEC, 1 << 16, 0755);
	for (size_t i = 0; i < COUNT(device_names); i++) {
		snprintf(path, sizeof(path), "%s/%s", op->target, device_names[i]);
		must(mknod(path, S_IFREG | 0644, 0) == 0, "the file", path);
		attach(op->trees[i], path);
	}
	for (size_t i = 0; i < COUNT(links); i++) {
		snprintf(path, sizeof(path), "%s/%s", op->target, links[i][1]);
		must(symlink(links[i][0], path) == 0, "the link", path);
	}
	snprintf(path, sizeof(path), "%s/pts", op->target);
	must(mkdir(path, 0755) == 0 &&
		 mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") == 0,
	     "terminals in", path);
	snprintf(path, sizeof(path), "%s/shm", op->target);
	must(mkdir(path, 01777) == 0, "the directory", path);
	place_tmpfs(path, MS_NOSUID | MS_NODEV, op->size, 01777);
}

static void place_file(const struct mount_op *op)
{
	int fd = open(op->target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) { /* no parent yet, or a file (or link) of the image in its place */
		make_parents(op->target);
		must(unlink(op->target) == 0 || errno == ENOENT, "replacing", op->target);
		fd = open(op->target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	}
	must(fd >= 0 && write_all(fd, op->rest, (size_t)(op->rest_end - op->rest)) == 0 &&
		 fchmod(fd, op->mode & 07777) == 0,
	     "the file", op->target);
	close(fd);
}

static void place_link(const struct mount_op *op)
{
	const char *to = (const char *)op->rest;
	if (symlink(to, op->target) == 0 || errno == EEXIST)
		return;
	make_parents(op->target);
	must(symlink(to, op->target) == 0, "the link", op->target);
}

static void place_mask(const struct mount_op *op)
{
	struct stat st;
	if (stat(op->target, &st) < 0)
		return;
	if (S_ISDIR(st.st_mode))
		must(mount("tmpfs", op->target, "tmpfs", HIDDEN_FLAGS, "size=4k,mode=0555") == 0, "masking",
		     op->target);
	else
		attach(clone_tree("/dev/null"), op->target);
}

static void place_read_only(const struct mount_op *op)
{
	struct stat st;
	if (stat(op->target, &st) < 0)
		return;
	int tree = clone_tree(op->target);
	set_attrs(tree, KP_ATTR_RDONLY, op->target);
	attach(tree, op->target);
}

static void place(struct mount_op *op)
{
	switch (op->kind) {
	case MOUNT_STAGING:
		break; /* done before anything else */
	case MOUNT_TMPFS:
		place_tmpfs(op->target, MS_NOSUID | MS_NODEV, op->size, op->mode);
		break;
	case MOUNT_DIR:
		make_dir(op->target, 0755);
		must(chmod(op->target, op->mode & 07777) == 0, "the mode of", op->target);
		if (op->size) /* of a directory: whose it is */
			must(chown(op->target, (uid_t)op->size, (gid_t)op->size) == 0, "the owner of", op->target);
		break;
	case MOUNT_SYMLINK:
		place_link(op);
		break;
	case MOUNT_FILE:
		place_file(op);
		break;
	case MOUNT_BIND:
		place_bind(op);
		break;
	case MOUNT_OVERLAY:
		if (op->trees[0] >= 0) {
			make_dir(op->target, 0755);
			attach(op->trees[0], op->target);
		}
		break;
	case MOUNT_PROC:
	case MOUNT_SYSFS:
		make_dir(op->target, 0755);
		attach(op->trees[0], op->target);
		break;
	case MOUNT_DEV:
		place_dev(op);
		break;
	case MOUNT_MASK:
		place_mask(op);
		break;
	case MOUNT_READ_ONLY:
		place_read_only(op);
		break;
	}
}

void mounts_build(struct sandbox_plan *plan, const int *sources, int nsources)
{
	struct gathering g = {.sources = sources, .nsources = nsources};
	int staging = new_filesystem("tmpfs", plan->mounts[0].size, KP_ATTR_NOSUID | KP_ATTR_NODEV);
	/* On /proc: a directory that is there and within everybody's reach, and that nobody looks at any more. */
	must(sys_move_mount(staging, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) == 0 && fchdir(staging) == 0,
	     "mounting the staging tmpfs", "");
	for (int i = 0; i < plan->nmounts; i++)
		gather(&g, &plan->mounts[i]);
	int root = attach_root(plan);
	change_root(root);
	for (int i = 0; i < plan->nmounts; i++)
		place(&plan->mounts[i]);
	close(root);
	close(staging);
}
