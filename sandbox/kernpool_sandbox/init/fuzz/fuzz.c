/* Feeds bytes to everything that reads bytes from outside: frames, plans, jobs, environments and user files.
 *
 * Built with sanitizers by tests/sandbox/kpinit/test_fuzz.py: `fuzz ROUNDS SEED [FILE]...` mutates the files (or
 * nothing) that often; the same seed gives the same bytes. With clang, -DLIBFUZZER makes it a libFuzzer target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../frame.h"
#include "../launch.h"
#include "../plan.h"
#include "../users.h"

/* Read every byte that a parser handed out, so that the sanitizer sees one out of bounds. */
static size_t touch_strings(const uint8_t *p, const uint8_t *end)
{
	size_t n = 0;
	for (const char *s; (s = packed_str(&p, end));)
		n += strlen(s);
	return n;
}

static size_t fuzz_plan(const struct frame *f)
{
	static struct sandbox_plan plan;
	const char *why = "";
	size_t n = 0;
	plan = (struct sandbox_plan){.id = NULL};
	if (plan_decode(&plan, f->body, f->body_len, &why) < 0 || plan_check(&plan, &why) < 0)
		return strlen(why);
	for (int i = 0; i < plan.nmounts; i++)
		n += strlen(plan.mounts[i].target) + touch_strings(plan.mounts[i].rest, plan.mounts[i].rest_end);
	for (int i = 0; i < plan.cgroups.n; i++)
		n += strlen(plan.cgroups.path[i]);
	return n + strlen(plan.id);
}

static size_t fuzz_job(const struct frame *f)
{
	static struct job_plan job;
	const char *why = "";
	size_t n = 0;
	job = (struct job_plan){.id = NULL};
	if (job_decode(&job, f, &why) < 0)
		return strlen(why);
	for (int i = 0; i < job.nsteps; i++)
		n += strlen(job.steps[i].name) + touch_strings(job.steps[i].args, job.steps[i].args_end);
	return n + strlen(job.cwd);
}

static size_t fuzz_environment(const struct frame *f)
{
	static struct environment env;
	struct user user = {.name = "bob", .home = "/home/bob"};
	size_t n = 0;
	memset(&env, 0, sizeof(env));
	if (environment_add(&env, f->body, f->body_len))
		environment_defaults(&env, &user);
	for (int i = 0; i < env.n; i++)
		n += strlen(env.vars[i]);
	return n;
}

/* The bytes as a passwd and a group file, and their first line as the wanted user. */
static size_t fuzz_users(const uint8_t *data, size_t len)
{
	struct user user;
	char *text = malloc(len + 1), *passwd = malloc(len + 1), *group = malloc(len + 1);
	memcpy(text, data, len);
	text[len] = 0;
	memcpy(passwd, text, len + 1);
	memcpy(group, text, len + 1);
	text[strcspn(text, "\n")] = 0;
	size_t n = user_parse(text, passwd, group, &user) == 0 ? strlen(user.home) + (size_t)user.ngroups : 0;
	free(text);
	free(passwd);
	free(group);
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	/* A copy of exactly this length: a read past its end is one past an allocation. */
	uint8_t *copy = malloc(len ? len : 1);
	volatile size_t sink = 0;
	struct frame f = {.nfds = 0};
	memcpy(copy, data, len);
	if (frame_parse(&f, copy, len) == 0) {
		sink += fuzz_plan(&f) + fuzz_job(&f) + fuzz_environment(&f);
		sink += strlen(frame_str(&f, TAG_PATH, "")) + frame_u64(&f, TAG_LIMIT, 0) + frame_u32(&f, TAG_MODE, 0);
	}
	sink += fuzz_users(copy, len);
	free(copy);
	return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint64_t random_u64(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void mutate(uint8_t *data, size_t *len, size_t cap)
{
	for (uint64_t n = random_u64() % 8; n > 0; n--) {
		size_t at = *len ? random_u64() % *len : 0;
		switch (random_u64() % 5) {
		case 0: /* flip */
			if (*len)
				data[at] ^= (uint8_t)(1U << random_u64() % 8);
			break;
		case 1: /* an edge as a length */
			if (*len - at >= 4)
				memcpy(data + at,
				       (uint32_t[]){random_u64() % 3 ? (uint32_t)(*len - at)
								     : 0xffffffffU - (uint32_t)(random_u64() % 16)},
				       4);
			break;
		case 2: /* cut */
			*len = at;
			break;
		case 3: /* grow */
			if (*len + 16 <= cap)
				for (int i = 0; i < 16; i++)
					data[(*len)++] = (uint8_t)random_u64();
			break;
		default: /* overwrite */
			if (*len)
				data[at] = (uint8_t)random_u64();
		}
	}
}

int main(int argc, char **argv)
{
	static uint8_t data[FRAME_BYTES_MAX + 64];
	long rounds = argc > 1 ? atol(argv[1]) : 100000;
	state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
	for (long i = 0; i < rounds; i++) {
		size_t len = 0;
		FILE *seed = argc > 3 ? fopen(argv[3 + random_u64() % (uint64_t)(argc - 3)], "rb") : NULL;
		if (seed) {
			len = fread(data, 1, sizeof(data), seed);
			fclose(seed);
		}
		mutate(data, &len, sizeof(data));
		LLVMFuzzerTestOneInput(data, len);
	}
	printf("%ld inputs\n", rounds);
	return 0;
}
#endif
