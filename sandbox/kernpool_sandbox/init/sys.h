/* System calls and constants newer than the oldest C library we build on, and flags that headers disagree about. */
#ifndef KP_SYS_H
#define KP_SYS_H

#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC 02000000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 0x04
#endif
#ifndef MOVE_MOUNT_T_SYMLINKS
#define MOVE_MOUNT_T_SYMLINKS 0x10
#endif
#ifndef FSOPEN_CLOEXEC
#define FSOPEN_CLOEXEC 1
#endif
#ifndef FSMOUNT_CLOEXEC
#define FSMOUNT_CLOEXEC 1
#endif
#define KP_FSCONFIG_SET_FLAG 0
#define KP_FSCONFIG_SET_STRING 1
#define KP_FSCONFIG_CMD_CREATE 6
#define KP_ATTR_RDONLY 0x01
#define KP_ATTR_NOSUID 0x02
#define KP_ATTR_NODEV 0x04
#define KP_ATTR_NOEXEC 0x08
#define KP_ATTR_IDMAP 0x00100000
#define KP_RESOLVE_NO_MAGICLINKS 0x02
#define KP_RESOLVE_BENEATH 0x08

struct kp_mount_attr {
	uint64_t attr_set, attr_clr, propagation, userns_fd;
};

struct kp_open_how {
	uint64_t flags, mode, resolve;
};

struct kp_clone_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

static inline int sys_close_range(unsigned first, unsigned last)
{
	return (int)syscall(SYS_close_range, first, last, 0);
}

static inline int sys_pidfd_open(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static inline int sys_pidfd_send_signal(int pidfd, int sig)
{
	return (int)syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0);
}

static inline int sys_open_tree(int dirfd, const char *path, unsigned flags)
{
	return (int)syscall(SYS_open_tree, dirfd, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
	return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_mount_setattr(int fd, unsigned flags, struct kp_mount_attr *attr)
{
	return (int)syscall(SYS_mount_setattr, fd, "", flags, attr, sizeof(*attr));
}

static inline int sys_fsopen(const char *name)
{
	return (int)syscall(SYS_fsopen, name, FSOPEN_CLOEXEC);
}

static inline int sys_fsconfig(int fd, unsigned command, const char *key, const char *value)
{
	return (int)syscall(SYS_fsconfig, fd, command, key, value, 0);
}

static inline int sys_fsmount(int fd, unsigned attrs)
{
	return (int)syscall(SYS_fsmount, fd, FSMOUNT_CLOEXEC, attrs);
}

static inline int sys_openat2(int dirfd, const char *path, struct kp_open_how *how)
{
	return (int)syscall(SYS_openat2, dirfd, path, how, sizeof(*how));
}

static inline int sys_pivot_root(const char *new_root, const char *put_old)
{
	return (int)syscall(SYS_pivot_root, new_root, put_old);
}

/* A fork with a pidfd and new namespaces. Returns as fork does. */
static inline pid_t sys_clone3(uint64_t flags, int *pidfd)
{
	struct kp_clone_args args = {.flags = flags | 0x1000 /* CLONE_PIDFD */,
				     .pidfd = (uint64_t)(uintptr_t)pidfd,
				     .exit_signal = 17 /* SIGCHLD */};
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

#endif
