/* What a spawner may be asked for, fixed by its command line: no request can go above it. */
#ifndef KP_CEILING_H
#define KP_CEILING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PREFIXES_MAX 64
#define RANGES_MAX 16

struct prefix {
	const char *path;
	int fd; /* O_PATH */
};

struct prefixes {
	struct prefix at[PREFIXES_MAX];
	int n;
};

struct ranges {
	uint32_t first[RANGES_MAX], last[RANGES_MAX];
	int n;
};

struct ceiling {
	struct prefixes sources, cgroups;
	struct ranges ids; /* host uids and gids */
	bool privileged;   /* may map ranges, idmap layers and become other users */
	uid_t owner;       /* may connect, and owns what it has to reach */
};

/* Add what a flag says. False when it makes no sense. */
bool prefix_add(struct prefixes *prefixes, const char *path);
bool range_add(struct ranges *ranges, const char *text); /* FIRST-LAST */

/* Open a path below one of the prefixes, resolved so that no link leads out of it. Returns an fd or -errno (-EPERM:
 * below none of them). */
int prefix_open(const struct prefixes *prefixes, const char *path, int flags);

bool range_covers(const struct ranges *ranges, uint64_t first, uint64_t count);

#endif
