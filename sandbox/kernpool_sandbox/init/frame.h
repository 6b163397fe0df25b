/* Messages: a bounds-checked reader and a builder. Everything a peer sends goes through frame_parse first. */
#ifndef KP_FRAME_H
#define KP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto.h"

struct frame {
	uint32_t op, seq;
	int32_t a, b;
	const uint8_t *body; /* checked: a sequence of whole tagged values */
	size_t body_len;
	int fds[FRAME_FDS_MAX]; /* owned by whoever received the frame */
	int nfds;
};

struct tlv {
	uint32_t tag, len;
	const uint8_t *data;
};

/* Read the header and check that the body is a sequence of whole values, and that those with a known tag have its type:
 * nothing later has to check either. Returns 0 or -EBADMSG. */
int frame_parse(struct frame *f, const uint8_t *buf, size_t len);

/* Receive one packet into buf. Returns 1, 0 at end-of-file, or -errno (-EAGAIN; -EBADMSG for a malformed or cut one). */
int frame_recv(int sock, struct frame *f, uint8_t *buf, size_t cap);

/* Close the descriptors of a frame. */
void frame_close_fds(struct frame *f);

/* Step through a checked body; *pos starts at 0. */
bool tlv_next(const uint8_t *body, size_t body_len, size_t *pos, struct tlv *out);

/* A checked value as a string, a 32-bit or a 64-bit number. */
const char *tlv_str(const struct tlv *t);
uint32_t tlv_u32(const struct tlv *t);
uint64_t tlv_u64(const struct tlv *t);

/* The first value with this tag as a string or number, or the default. */
const char *frame_str(const struct frame *f, uint32_t tag, const char *otherwise);
uint64_t frame_u64(const struct frame *f, uint32_t tag, uint64_t otherwise);
uint32_t frame_u32(const struct frame *f, uint32_t tag, uint32_t otherwise);

/* The same for a duration in milliseconds, which is at most ten years: no sum with a clock overflows. */
#define DURATION_MS_MAX (10ULL * 366 * 24 * 3600 * 1000)
uint64_t frame_ms(const struct frame *f, uint32_t tag, uint64_t otherwise);

/* Step through NUL-terminated strings packed in [*p, end). NULL at the end or when the last one has no NUL. */
const char *packed_str(const uint8_t **p, const uint8_t *end);

struct out {
	size_t len;
	uint8_t buf[REPLY_BYTES_MAX];
};

void out_begin(struct out *o, uint32_t op, uint32_t seq, int32_t a, int32_t b);
bool out_put(struct out *o, uint32_t tag, const void *data, size_t len); /* false: does not fit */
bool out_u32(struct out *o, uint32_t tag, uint32_t value);
bool out_u64(struct out *o, uint32_t tag, uint64_t value);
bool out_str(struct out *o, uint32_t tag, const char *text);

/* Send without blocking and without SIGPIPE. Returns 0 or -errno. */
int out_send(int sock, const struct out *o, const int *fds, int nfds);

#define ANSWER_WAIT_MS 1000 /* an agent that takes no answer for so long is stuck */

/* The same, waiting (each time at most wait_ms) while the other side's buffer is full: -EAGAIN when it stays so. */
int out_send_within(int sock, const struct out *o, const int *fds, int nfds, int wait_ms);

#endif
