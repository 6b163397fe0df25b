#define _GNU_SOURCE
#include "ceiling.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "sys.h"

bool prefix_add(struct prefixes *prefixes, const char *path)
{
	if (prefixes->n == PREFIXES_MAX || path[0] != '/')
		return false;
	int fd = open(path, O_PATH | O_CLOEXEC);
	prefixes->at[prefixes->n++] = (struct prefix){.path = path, .fd = fd};
	return fd >= 0;
}

bool range_add(struct ranges *ranges, const char *text)
{
	char *end;
	unsigned long first = strtoul(text, &end, 0);
	if (ranges->n == RANGES_MAX || *end != '-')
		return false;
	unsigned long last = strtoul(end + 1, &end, 0);
	if (*end || last < first || last >= UINT32_MAX)
		return false;
	ranges->first[ranges->n] = (uint32_t)first;
	ranges->last[ranges->n++] = (uint32_t)last;
	return true;
}

/* What of path comes after the prefix ("." for the prefix itself), or NULL when it is not below it. */
static const char *below(const char *prefix, const char *path)
{
	size_t len = strlen(prefix);
	while (len > 0 && prefix[len - 1] == '/')
		len--;
	if (strncmp(prefix, path, len) != 0 || (path[len] && path[len] != '/'))
		return NULL;
	path += len;
	path += strspn(path, "/");
	return *path ? path : "";
}

int prefix_open(const struct prefixes *prefixes, const char *path, int flags)
{
	int err = -EPERM;
	for (int i = 0; i < prefixes->n; i++) {
		const char *rest = below(prefixes->at[i].path, path);
		if (!rest)
			continue;
		struct kp_open_how how = {.flags = (uint64_t)flags | O_CLOEXEC, .resolve = KP_RESOLVE_NO_MAGICLINKS};
		/* From "/" no link leads out; elsewhere an absolute one always would. */
		if (strcmp(prefixes->at[i].path, "/") != 0)
			how.resolve |= KP_RESOLVE_BENEATH;
		/* The prefix itself may be a file, which has no "." below it. */
		int fd =
		    *rest ? sys_openat2(prefixes->at[i].fd, rest, &how) : fcntl(prefixes->at[i].fd, F_DUPFD_CLOEXEC, 3);
		if (fd >= 0)
			return fd;
		err = -errno;
	}
	return err;
}

bool range_covers(const struct ranges *ranges, uint64_t first, uint64_t count)
{
	for (int i = 0; i < ranges->n; i++)
		if (first >= ranges->first[i] && count > 0 && first + count - 1 <= ranges->last[i])
			return true;
	return false;
}
