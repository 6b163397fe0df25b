/* Users of a sandbox, looked up in its own passwd and group files by a bounded parser (no NSS in a static program). */
#ifndef KP_USERS_H
#define KP_USERS_H

#include <stdint.h>

#include "plan.h"

struct user {
	uint32_t uid, gid;
	uint32_t groups[GROUPS_MAX];
	int ngroups;
	bool set_groups; /* false where the kernel denies setgroups (a single-id mapping) */
	char name[64], home[256];
};

/* Resolve "name", "uid", "name:group" or "uid:gid"; "" is root. Returns 0 or -errno (-EINVAL: no such user). */
int user_resolve(const char *text, struct user *out);

/* The same on the text of the two files, for tests. */
int user_parse(const char *text, char *passwd, char *group, struct user *out);

#endif
