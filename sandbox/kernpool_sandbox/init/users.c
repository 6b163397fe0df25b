#define _GNU_SOURCE
#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define DATABASE_BYTES_MAX (1 << 20)

/* Cut the next line off *text; NULL at the end. */
static char *next_line(char **text)
{
	if (!**text)
		return NULL;
	char *line = *text;
	*text += strcspn(line, "\n");
	if (**text)
		*(*text)++ = 0;
	return line;
}

/* Split a line at its colons; returns how many fields it had (missing ones are ""). */
static int split(char *line, char *field[], int max)
{
	static char empty[1];
	for (int i = 0; i < max; i++)
		field[i] = empty;
	int n = 0;
	for (char *p = line; p && n < max; n++) {
		field[n] = p;
		p = strchr(p, ':');
		if (p)
			*p++ = 0;
	}
	return n;
}

static bool number(const char *text, uint32_t *out)
{
	char *end;
	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (*end || errno || value >= UINT32_MAX)
		return false;
	*out = (uint32_t)value;
	return true;
}

static void copy(char *to, size_t cap, const char *from)
{
	size_t len = strnlen(from, cap - 1);
	memcpy(to, from, len);
	to[len] = 0;
}

/* Find the user's line, by name or by number. */
static bool find_user(char *passwd, const char *wanted, struct user *out)
{
	uint32_t wanted_uid, uid, gid;
	bool by_number = number(wanted, &wanted_uid);
	for (char *line; (line = next_line(&passwd));) {
		char *field[7];
		if (split(line, field, 7) < 4 || !number(field[2], &uid) || !number(field[3], &gid))
			continue;
		if (by_number ? uid != wanted_uid : strcmp(field[0], wanted) != 0)
			continue;
		out->uid = uid;
		out->gid = gid;
		copy(out->name, sizeof(out->name), field[0]);
		copy(out->home, sizeof(out->home), field[5][0] == '/' ? field[5] : "/");
		return true;
	}
	return false;
}

static bool listed(char *members, const char *name)
{
	for (char *save, *m = strtok_r(members, ",", &save); m; m = strtok_r(NULL, ",", &save))
		if (strcmp(m, name) == 0)
			return true;
	return false;
}

/* One pass over the group file: the wanted group's number (unless NULL) and the groups that list the user. */
static bool scan_groups(char *group, const char *wanted, struct user *out)
{
	bool found = !wanted;
	for (char *line; (line = next_line(&group));) {
		char *field[4];
		uint32_t gid;
		if (split(line, field, 4) < 3 || !number(field[2], &gid))
			continue;
		if (wanted && !found && strcmp(field[0], wanted) == 0) {
			out->gid = gid;
			found = true;
		}
		if (out->name[0] && out->ngroups < GROUPS_MAX && listed(field[3], out->name))
			out->groups[out->ngroups++] = gid;
	}
	return found;
}

int user_parse(const char *text, char *passwd, char *group, struct user *out)
{
	char wanted[128];
	if (strlen(text) >= sizeof(wanted))
		return -EINVAL;
	strcpy(wanted, text);
	char *wanted_group = strchr(wanted, ':');
	if (wanted_group)
		*wanted_group++ = 0;
	memset(out, 0, sizeof(*out));
	strcpy(out->home, "/");
	if (!find_user(passwd, wanted, out)) {
		if (!number(wanted, &out->uid))
			return -EINVAL;
		out->gid = out->uid;
	}
	bool by_number = wanted_group && number(wanted_group, &out->gid);
	return scan_groups(group, by_number ? NULL : wanted_group, out) ? 0 : -EINVAL;
}

int user_resolve(const char *text, struct user *out)
{
	if (!text[0] || strcmp(text, "root") == 0) {
		*out = (struct user){.name = "root", .home = "/root"};
		return 0;
	}
	char *passwd = malloc(DATABASE_BYTES_MAX), *group = malloc(DATABASE_BYTES_MAX);
	int err = passwd && group ? 0 : -ENOMEM;
	if (!err) {
		if (read_small(AT_FDCWD, "/etc/passwd", passwd, DATABASE_BYTES_MAX) < 0)
			passwd[0] = 0;
		if (read_small(AT_FDCWD, "/etc/group", group, DATABASE_BYTES_MAX) < 0)
			group[0] = 0;
		err = user_parse(text, passwd, group, out);
	}
	free(passwd);
	free(group);
	return err;
}
