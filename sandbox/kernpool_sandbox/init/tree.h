/* All descendants of this process, found by parent links in /proc and signalled by pidfd. The caller should be a
 * subreaper: then no descendant can leave the tree, whatever forks, daemonises or dies. */
#ifndef KP_TREE_H
#define KP_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Remember /proc as it is now (a sandbox forgets the spawner's): later nobody inside can show us another one. */
bool tree_open(void);

/* The descriptor behind it, to be kept open; -1 without one. */
int tree_fd(void);

/* Signal every descendant. Returns how many were found. One pass cannot catch what is being forked meanwhile:
 * repeat a SIGKILL until no child is left. */
int tree_signal(int sig);

/* SIGKILL those children of this process that are not listed: orphans that it has inherited. */
void tree_kill_strays(const pid_t *known, size_t n);

/* Reap the children that have ended; calls seen for each. Returns false when no child is left. */
struct rusage;
bool tree_reap(void (*seen)(void *arg, int pid, int status, const struct rusage *usage), void *arg);

#endif
