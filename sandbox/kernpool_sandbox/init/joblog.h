/* A job's log: raw bytes in segments `log.<16-digit start offset>`, the oldest removed beyond the bound. */
#ifndef KP_JOBLOG_H
#define KP_JOBLOG_H

#include <stdint.h>
#include <sys/types.h>

struct joblog {
	int dir, fd; /* -1: no segment is open */
	uint64_t segment_bytes, bytes_max;
	uint64_t first, end; /* offsets of the oldest kept byte and past the newest */
	uint64_t lost;       /* bytes that could not be written (a full disk) */
	uid_t owner;
};

/* Append; what cannot be written is counted, never waited for. */
void joblog_write(struct joblog *log, const void *data, size_t len);

#endif
