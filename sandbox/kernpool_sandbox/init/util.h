/* Small things that several parts need: clocks, bounded reads and writes, descriptors, the end record. */
#ifndef KP_UTIL_H
#define KP_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

int64_t boot_ms(void); /* CLOCK_BOOTTIME: also runs while the machine sleeps; the only clock that decides */
int64_t unix_ms(void); /* for people */

/* Read a whole regular file of at most cap - 1 bytes (longer ones are cut) and end it with NUL. Length or -errno. */
ssize_t read_small(int dirfd, const char *path, char *buf, size_t cap);

/* Write all bytes; 0 or -errno. */
int write_all(int fd, const void *data, size_t len);
int write_file(const char *path, const char *text);

/* Close every descriptor above 2 that is not listed (the list gets sorted). */
void close_all_except(int *keep, size_t n);

/* Put /dev/null, or whatever fd is, on 0, 1 and 2. */
void stdio_from(int fd);

bool valid_id(const char *id); /* a file name: 1 to 64 of a-z A-Z 0-9 . _ - and no leading dot */

const char *boot_id(void);

/* What `ps` shows of us: hold the place once, then put "kp-init ID" there. A sandbox's own programs can read it, too, and
 * the spawner's flags name paths of the host. */
void command_line_hold(int argc, char **argv);
void command_line_set(const char *id);

/* Append how a sandbox ended to its record, once: one write of at most 512 bytes. */
void end_record(int fd, const char *cause, int status, const char *detail);

#endif
