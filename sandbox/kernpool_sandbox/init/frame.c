#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER_BYTES 16
#define TLV_HEADER_BYTES 8

static uint32_t get_u32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return v;
}

bool tlv_next(const uint8_t *body, size_t body_len, size_t *pos, struct tlv *out)
{
	size_t left = body_len - *pos;
	if (left < TLV_HEADER_BYTES)
		return false;
	out->tag = get_u32(body + *pos);
	out->len = get_u32(body + *pos + 4);
	if (out->len > left - TLV_HEADER_BYTES)
		return false;
	out->data = body + *pos + TLV_HEADER_BYTES;
	*pos += TLV_HEADER_BYTES + out->len;
	return true;
}

/* Whether a value has the shape that its tag promises; tags that are structs or unknown have none to check here. */
static bool well_typed(const struct tlv *t)
{
	switch (t->tag) {
	case TAG_ID:
	case TAG_TEMPLATE:
	case TAG_HOSTNAME:
	case TAG_CGROUP:
	case TAG_ARG:
	case TAG_ENV:
	case TAG_CWD:
	case TAG_USER:
	case TAG_TOKEN:
	case TAG_PATH:
	case TAG_TO:
	case TAG_DETAIL:
		return t->len > 0 && memchr(t->data, 0, t->len) == t->data + t->len - 1;
	case TAG_FLAGS:
	case TAG_MODE:
	case TAG_UID:
	case TAG_GID:
	case TAG_GROUP:
		return t->len == sizeof(uint32_t);
	case TAG_UID_START:
	case TAG_UID_COUNT:
	case TAG_PARKED_TTL_MS:
	case TAG_TIMEOUT_MS:
	case TAG_RING_BYTES:
	case TAG_TTL_MS:
	case TAG_OFFSET:
	case TAG_LIMIT:
	case TAG_LOG_BYTES_MAX:
	case TAG_SEGMENT_BYTES:
	case TAG_GRACE_MS:
		return t->len == sizeof(uint64_t);
	default:
		return true;
	}
}

int frame_parse(struct frame *f, const uint8_t *buf, size_t len)
{
	if (len < HEADER_BYTES || len > FRAME_BYTES_MAX)
		return -EBADMSG;
	f->op = get_u32(buf);
	f->seq = get_u32(buf + 4);
	f->a = (int32_t)get_u32(buf + 8);
	f->b = (int32_t)get_u32(buf + 12);
	f->body = buf + HEADER_BYTES;
	f->body_len = len - HEADER_BYTES;
	struct tlv t;
	size_t pos = 0;
	while (tlv_next(f->body, f->body_len, &pos, &t))
		if (!well_typed(&t))
			return -EBADMSG;
	return pos == f->body_len ? 0 : -EBADMSG;
}

static void collect_fds(struct frame *f, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (int i = 0; i < n && f->nfds < FRAME_FDS_MAX; i++)
			memcpy(&f->fds[f->nfds++], CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof(int));
	}
}

int frame_recv(int sock, struct frame *f, uint8_t *buf, size_t cap)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int) * FRAME_FDS_MAX)];
	} control;
	struct iovec iov = {.iov_base = buf, .iov_len = cap};
	struct msghdr msg = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	f->nfds = 0;
	ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	collect_fds(f, &msg);
	/* An empty packet cannot be told from end-of-file, and neither is a message. */
	if (n == 0) {
		frame_close_fds(f);
		return 0;
	}
	bool cut = (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
	if (cut || frame_parse(f, buf, (size_t)n) < 0) {
		frame_close_fds(f);
		return -EBADMSG;
	}
	return 1;
}

void frame_close_fds(struct frame *f)
{
	for (int i = 0; i < f->nfds; i++)
		close(f->fds[i]);
	f->nfds = 0;
}

const char *tlv_str(const struct tlv *t)
{
	return (const char *)t->data;
}

uint32_t tlv_u32(const struct tlv *t)
{
	return get_u32(t->data);
}

uint64_t tlv_u64(const struct tlv *t)
{
	uint64_t v;
	memcpy(&v, t->data, sizeof(v));
	return v;
}

static bool find(const struct frame *f, uint32_t tag, struct tlv *t)
{
	size_t pos = 0;
	while (tlv_next(f->body, f->body_len, &pos, t))
		if (t->tag == tag)
			return true;
	return false;
}

const char *frame_str(const struct frame *f, uint32_t tag, const char *otherwise)
{
	struct tlv t;
	return find(f, tag, &t) ? tlv_str(&t) : otherwise;
}

uint64_t frame_u64(const struct frame *f, uint32_t tag, uint64_t otherwise)
{
	struct tlv t;
	return find(f, tag, &t) ? tlv_u64(&t) : otherwise;
}

uint32_t frame_u32(const struct frame *f, uint32_t tag, uint32_t otherwise)
{
	struct tlv t;
	return find(f, tag, &t) ? tlv_u32(&t) : otherwise;
}

uint64_t frame_ms(const struct frame *f, uint32_t tag, uint64_t otherwise)
{
	uint64_t ms = frame_u64(f, tag, otherwise);
	return ms < DURATION_MS_MAX ? ms : DURATION_MS_MAX;
}

const char *packed_str(const uint8_t **p, const uint8_t *end)
{
	if (*p >= end)
		return NULL;
	const uint8_t *nul = memchr(*p, 0, (size_t)(end - *p));
	if (!nul)
		return NULL;
	const char *text = (const char *)*p;
	*p = nul + 1;
	return text;
}

void out_begin(struct out *o, uint32_t op, uint32_t seq, int32_t a, int32_t b)
{
	memcpy(o->buf, &op, 4);
	memcpy(o->buf + 4, &seq, 4);
	memcpy(o->buf + 8, &a, 4);
	memcpy(o->buf + 12, &b, 4);
	o->len = HEADER_BYTES;
}

bool out_put(struct out *o, uint32_t tag, const void *data, size_t len)
{
	if (len > sizeof(o->buf) - o->len || sizeof(o->buf) - o->len - len < TLV_HEADER_BYTES)
		return false;
	uint32_t len32 = (uint32_t)len;
	memcpy(o->buf + o->len, &tag, 4);
	memcpy(o->buf + o->len + 4, &len32, 4);
	memcpy(o->buf + o->len + TLV_HEADER_BYTES, data, len);
	o->len += TLV_HEADER_BYTES + len;
	return true;
}

bool out_u32(struct out *o, uint32_t tag, uint32_t value)
{
	return out_put(o, tag, &value, sizeof(value));
}

bool out_u64(struct out *o, uint32_t tag, uint64_t value)
{
	return out_put(o, tag, &value, sizeof(value));
}

bool out_str(struct out *o, uint32_t tag, const char *text)
{
	return out_put(o, tag, text, strlen(text) + 1);
}

int out_send(int sock, const struct out *o, const int *fds, int nfds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int) * FRAME_FDS_MAX)];
	} control;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)o->buf, .iov_len = o->len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (nfds > 0) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
	}
	return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int out_send_within(int sock, const struct out *o, const int *fds, int nfds, int wait_ms)
{
	struct pollfd writable = {sock, POLLOUT, 0};
	int err = out_send(sock, o, fds, nfds);
	while (err == -EAGAIN && poll(&writable, 1, wait_ms) > 0)
		err = out_send(sock, o, fds, nfds);
	return err;
}
