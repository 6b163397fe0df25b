/* Installs the table that packaging/seccomp/generate.py makes. */
#include "seccomp.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "seccomp_table.h"

int seccomp_install(void)
{
	struct sock_fprog program = {
		.len = sizeof(seccomp_table) / sizeof(seccomp_table[0]),
		.filter = (struct sock_filter *)seccomp_table,
	};
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
