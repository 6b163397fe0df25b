#define _GNU_SOURCE
#include "seccomp.h"

#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "seccomp_table.h"
#include "util.h"

int seccomp_install(void)
{
	struct sock_fprog program = {.len = COUNT(seccomp_table), .filter = seccomp_table};
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
