/* kp-init: spawns sandboxes and jobs, and is PID 1 or supervisor of each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto.h"
#include "spawner.h"
#include "util.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static const char usage[] =
    "usage: kp-init spawner --state DIR [--socket PATH] [--runtime DIR]\n"
    "                       [--allow-source PREFIX]... [--allow-cgroup PREFIX]... [--allow-ids FIRST-LAST]...\n"
    "                       [--owner UID] [--daemon yes]\n"
    "       kp-init version\n";

/* Run from a sealed copy in memory: whoever finds a way to /proc/PID/exe of ours sees no file of the host. */
static void run_from_memory(char **argv, char **envp)
{
	int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (self < 0 || fcntl(self, F_GET_SEALS) == SEALS) {
		close(self);
		return;
	}
	int copy = memfd_create("kp-init", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
	if (copy < 0 && errno == EINVAL) /* a kernel before MFD_EXEC */
		copy = memfd_create("kp-init", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat st;
	ssize_t n = copy >= 0 && fstat(self, &st) == 0 ? 1 : -1;
	for (off_t at = 0; n > 0 && at < st.st_size;)
		n = sendfile(copy, self, &at, (size_t)(st.st_size - at));
	if (n > 0 && fcntl(copy, F_ADD_SEALS, SEALS) == 0)
		fexecve(copy, argv, envp);
	fprintf(stderr, "kp-init: cannot run from memory (%s); running from the file\n", strerror(errno));
}

static bool may_admin(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};
	return syscall(SYS_capget, &header, data) == 0 && data[0].effective & 1U << CAP_SYS_ADMIN;
}

static bool parse_flag(struct spawner_options *o, const char *flag, const char *value)
{
	if (strcmp(flag, "--state") == 0)
		return (o->state = value)[0] == '/';
	if (strcmp(flag, "--socket") == 0)
		return (o->socket = value)[0] == '/';
	if (strcmp(flag, "--runtime") == 0)
		return (o->runtime = value)[0] == '/';
	if (strcmp(flag, "--allow-source") == 0)
		return prefix_add(&o->ceiling.sources, value);
	if (strcmp(flag, "--allow-cgroup") == 0)
		return prefix_add(&o->ceiling.cgroups, value);
	if (strcmp(flag, "--allow-ids") == 0)
		return range_add(&o->ceiling.ids, value);
	if (strcmp(flag, "--daemon") == 0)
		return (o->daemon = strcmp(value, "yes") == 0);
	if (strcmp(flag, "--owner") == 0) {
		char *end;
		o->ceiling.owner = (uid_t)strtoul(value, &end, 10);
		return *value && !*end;
	}
	errno = EINVAL;
	return false;
}

int main(int argc, char **argv, char **envp)
{
	static struct spawner_options options;
	static char socket[4096];
	if (argc == 2 && strcmp(argv[1], "version") == 0) {
		printf("kp-init protocol %d-%d\n", PROTO_MIN, PROTO_MAX);
		return 0;
	}
	if (argc < 2 || strcmp(argv[1], "spawner") != 0 || argc % 2 != 0) {
		fputs(usage, stderr);
		return 2;
	}
	run_from_memory(argv, envp);
	command_line_hold(argc, argv);
	options.ceiling.owner = (uid_t)-1;
	options.ceiling.privileged = may_admin();
	for (int i = 2; i < argc; i += 2) {
		errno = EINVAL;
		if (!parse_flag(&options, argv[i], argv[i + 1])) {
			fprintf(stderr, "kp-init spawner: %s %s: %s\n%s", argv[i], argv[i + 1], strerror(errno), usage);
			return 2;
		}
	}
	if (!options.state) {
		fputs(usage, stderr);
		return 2;
	}
	snprintf(socket, sizeof(socket), "%s/spawner.sock", options.state);
	options.socket = options.socket ? options.socket : socket;
	return spawner_run(&options);
}
