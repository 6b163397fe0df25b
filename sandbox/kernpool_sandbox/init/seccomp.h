/* The allow list of system calls, installed once in PID 1 and inherited by every exec. */
#ifndef KP_SECCOMP_H
#define KP_SECCOMP_H

/* Needs no_new_privs or CAP_SYS_ADMIN in the user namespace. 0, or -1 with errno. */
int seccomp_install(void);

#endif
