/* Starts one program as one user: the last step before every exec, of sandboxes and of jobs. */
#ifndef KP_LAUNCH_H
#define KP_LAUNCH_H

#include <sys/types.h>

#include "plan.h"
#include "users.h"

#define STRINGS_MAX 16384 /* arguments, and environment variables: more do not fit a frame */

struct launch {
	char **argv, **envp;
	const char *cwd;
	const struct user *user; /* NULL: stay who we are */
	int stdin_fd, stdout_fd, stderr_fd;
	const struct cgroups *cgroups; /* joined before the identity is dropped; NULL: none */
	const struct limits *limits;
};

struct launch_error {
	int err;          /* errno */
	const char *what; /* what could not be done */
};

/* Start it. Returns the pid, or -1 with the error of whatever failed, execve included (a vfork shares our memory). */
pid_t launch(const struct launch *l, struct launch_error *error);

/* Drop to a user for good; root keeps only the capabilities that a sandbox's root may have. 0 or -errno. */
int become(const struct user *user);

/* Drop from the bounding set what no program of a sandbox may ever have. */
void drop_bounding(void);

/* The environment: later ones of the same name win, then what is still missing of PATH, HOME, USER and LOGNAME. */
struct environment {
	char *vars[STRINGS_MAX + 1];
	int n;
	char home[512], user[128], logname[128];
};

/* Add the TAG_ENV values of a body. False when there are too many or one has no name. */
bool environment_add(struct environment *env, const uint8_t *body, size_t len);
void environment_defaults(struct environment *env, const struct user *user);

#endif
