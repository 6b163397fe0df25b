/* The system calls that a sandbox's programs may use. */
#ifndef KP_SECCOMP_H
#define KP_SECCOMP_H

/* Install the filter on this process and all it will start. 0, or -1 with errno. */
int seccomp_install(void);

#endif
