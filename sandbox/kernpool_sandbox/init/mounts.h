/* The sandbox's file tree: what comes from the host is gathered as detached mounts, the root is changed and the host's
 * let go, and only then, where no path or symbolic link can lead outside any more, everything is put in its place. */
#ifndef KP_MOUNTS_H
#define KP_MOUNTS_H

#include "plan.h"

/* Build it. With sources, they are what Bind and Overlay name, in order; without, those are opened by path. Calls
 * setup_fail on any error. */
void mounts_build(struct sandbox_plan *plan, const int *sources, int nsources);

_Noreturn void setup_fail(const char *what, const char *target, int err);

/* The mount attributes (MOUNT_ATTR_*) of an operation. */
uint64_t mount_attrs(const struct mount_op *op);

#endif
