/* The wire of kp-init: numbers shared with kpinit/wire.py (a test compares the two). Numbers are never reused.
 *
 * One message is one SOCK_SEQPACKET packet: a header of four 32-bit little-endian numbers, then tagged values
 * {u32 tag, u32 length, bytes}. A reader skips tags it does not know. Strings end with their one NUL byte.
 * A reply repeats op and seq of its request; `a` is 0 or a positive answer, or -errno with TAG_DETAIL. Events have seq 0.
 */
#ifndef KP_PROTO_H
#define KP_PROTO_H

#define PROTO_MIN 1
#define PROTO_MAX 1
#define FRAME_BYTES_MAX (128 * 1024) /* of a request */
#define REPLY_BYTES_MAX (16 * 1024)  /* of a reply or event */
#define FRAME_FDS_MAX 64

enum op {
	/* everywhere */
	OP_HELLO = 1, /* a, b: oldest and newest protocol the client speaks; reply a: the one to speak */
	OP_PING = 2,
	OP_LIST = 3, /* a: only rows with a greater key (exec id or pid); reply b: 1 when more rows follow */
	/* the spawner */
	OP_DEFINE = 16, /* remember the other tags under TAG_TEMPLATE */
	OP_SPAWN = 17,  /* reply a: pid, fd: pidfd */
	OP_SPAWN_JOB = 18,
	OP_KILL = 19,
	OP_STOP = 20,
	/* PID 1 of a sandbox */
	OP_CLAIM = 32,
	OP_EXTEND = 33,
	OP_EXEC = 34,   /* a: exec id; reply a: pid, fds: stdout, stderr and, when asked for, stdin */
	OP_SIGNAL = 35, /* a: exec id (jobs: 0), b: signal, TAG_FLAGS: SIGNAL_TREE */
	OP_ACK = 36,
	OP_REATTACH = 37, /* reply: TAG_STREAM twice; fds as their flags say */
	OP_FILE = 38,     /* a: enum file_op, fd: where bytes go or come from; reply a: 0, TAG_MOVED: bytes moved */
	OP_CONNECT = 39,  /* a: port, TAG_PATH: address; reply fd: a socket that is connecting */
	OP_SHUTDOWN = 40,
	/* the supervisor of a job */
	OP_JOB_STOP = 64,
	/* events */
	EV_EXEC_EXITED = 128,  /* a: exec id, b: wait status, TAG_FLAGS: EXITED_DISK_FULL */
	EV_STEP_STARTED = 129, /* a: index, b: pid */
	EV_LOG_GREW = 130,     /* TAG_OFFSET */
	EV_JOB_EXITED = 131,   /* a: cause, b: wait status */
	EV_CHILD_ENDED = 132,  /* a: kind, b: wait status */
};

enum tag {
	TAG_ID = 1,
	TAG_BOOT_ID = 2,
	TAG_KIND = 3,   /* u32 enum kind */
	TAG_DETAIL = 4, /* text for people */
	TAG_CLAIMED = 5,
	TAG_TTL_LEFT_MS = 6,
	TAG_COUNT = 7,
	TAG_PRIVILEGED = 8,
	TAG_STATE_DIR = 9,
	TAG_FLAGS = 10,
	TAG_ROW = 11,   /* struct of the list that was asked for */
	TAG_USAGE = 12, /* u64 user us, u64 system us, u64 max rss KiB */
	/* sandbox plans */
	TAG_TEMPLATE = 16,
	TAG_MOUNT = 17, /* u32 kind, u32 flags, u32 mode, u64 size (Dir: owner), strings (or target and data) */
	TAG_UID_START = 18,
	TAG_UID_COUNT = 19,
	TAG_HOSTNAME = 20,
	TAG_CGROUP = 21, /* repeated */
	TAG_PARKED_TTL_MS = 22,
	TAG_RLIMIT = 23, /* repeated: u32 resource, u64 value */
	/* execs */
	TAG_ARG = 32, /* repeated */
	TAG_ENV = 33, /* repeated: NAME=value */
	TAG_CWD = 34,
	TAG_USER = 35,
	TAG_TIMEOUT_MS = 36,
	TAG_RING_BYTES = 37,
	TAG_TOKEN = 38,
	TAG_TTL_MS = 39,
	TAG_ENTROPY = 40,
	TAG_CAUSE = 41,
	TAG_STREAM = 42, /* u32 flags, u64 kept, u64 dropped, u64 drained */
	/* files and connections */
	TAG_PATH = 48,
	TAG_TO = 49,
	TAG_OFFSET = 50,
	TAG_LIMIT = 51,
	TAG_MODE = 52,
	TAG_MOVED = 53,
	/* jobs */
	TAG_STEP = 64, /* repeated: u64 timeout ms, strings: name, argv... */
	TAG_UID = 65,
	TAG_GID = 66,
	TAG_GROUP = 67, /* repeated */
	TAG_LOG_BYTES_MAX = 68,
	TAG_SEGMENT_BYTES = 69,
	TAG_GRACE_MS = 70,
};

enum kind { KIND_SPAWNER = 1, KIND_SANDBOX = 2, KIND_JOB = 3 };

enum plan_flag { PLAN_NETNS = 1, PLAN_SECCOMP = 2, PLAN_ALLOW_SETUID = 4 };

enum mount_kind {
	MOUNT_STAGING = 1,
	MOUNT_TMPFS = 2,
	MOUNT_DIR = 3,
	MOUNT_SYMLINK = 4,
	MOUNT_FILE = 5,
	MOUNT_BIND = 6,
	MOUNT_OVERLAY = 7,
	MOUNT_PROC = 8,
	MOUNT_DEV = 9,
	MOUNT_SYSFS = 10,
	MOUNT_MASK = 11,
	MOUNT_READ_ONLY = 12,
};

enum mount_flag { MOUNT_F_RDONLY = 1, MOUNT_F_NOSUID = 2, MOUNT_F_NODEV = 4, MOUNT_F_NOEXEC = 8, MOUNT_F_IDMAP = 16 };

enum exec_flag { EXEC_STDIN = 1 };
enum signal_flag { SIGNAL_TREE = 1 };
enum exited_flag { EXITED_DISK_FULL = 1 }; /* it failed, and the filesystem of "/" has no room */
enum stream_flag { STREAM_HAS_FD = 1, STREAM_HAS_KEPT = 2 };
enum exec_cause { EXEC_EXITED = 0, EXEC_TIMEOUT = 1, EXEC_SIGNALLED = 2, EXEC_LOST = 3 };
enum job_cause { JOB_EXITED = 0, JOB_TIMEOUT = 1, JOB_STOPPED = 2, JOB_START_FAILED = 3 };

enum file_op {
	FILE_READ = 1,
	FILE_WRITE = 2,
	FILE_LIST = 3,
	FILE_STAT = 4,
	FILE_MKDIR = 5,
	FILE_REMOVE = 6,
	FILE_MOVE = 7,
};

enum file_flag { FILE_PARENTS = 1, FILE_RECURSIVE = 2 };

#endif
