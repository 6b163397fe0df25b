/* A small libnvidia-ml.so.1 for machines without a GPU: the real pynvml loads it through ctypes.
 *
 * It reads the file named by KP_FAKE_NVML at each nvmlInit, one `key value` per line:
 *   count N            GPUs that are there (default 2)
 *   init CODE          nvmlInit returns this code (9: driver not loaded)
 *   name TEXT          product name of every GPU
 *   memory_mib N
 *   fail CALL CODE     CALL (uuid, name, memory, handle) returns CODE for GPU 1
 *   hang CALL          CALL never returns
 *   die CALL           CALL crashes the process
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;

static int count = 2, init_code = 0, fail_code = 0;
static unsigned long long memory_mib = 81920;
static char name[96] = "NVIDIA H100 80GB HBM3", fail_call[32], hang_call[32], die_call[32];

static void read_settings(void)
{
    const char *path = getenv("KP_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[160];
    count = 2, init_code = 0, fail_call[0] = hang_call[0] = die_call[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "count %d", &count);
        sscanf(line, "init %d", &init_code);
        sscanf(line, "name %95[^\n]", name);
        sscanf(line, "memory_mib %llu", &memory_mib);
        sscanf(line, "fail %31s %d", fail_call, &fail_code);
        sscanf(line, "hang %31s", hang_call);
        sscanf(line, "die %31s", die_call);
    }
    if (file)
        fclose(file);
}

static int enter(const char *call, long index)
{
    if (strcmp(call, hang_call) == 0)
        for (;;)
            pause();
    if (strcmp(call, die_call) == 0)
        abort();
    return index == 1 && strcmp(call, fail_call) == 0 ? fail_code : 0;
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    read_settings();
    enter("init", 0);
    return init_code;
}

int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "595.45.04");
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *number)
{
    *number = (unsigned int)count;
    return enter("count", 0);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    *handle = (void *)(long)(index + 1);
    return enter("handle", (long)index);
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012ld", (long)handle - 1);
    return enter("uuid", (long)handle - 1);
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int length)
{
    snprintf(text, length, "%s", name);
    return enter("name", (long)handle - 1);
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory)
{
    memory->total = memory_mib << 20;
    memory->used = 1ull << 30;
    memory->free = memory->total - memory->used;
    return enter("memory", (long)handle - 1);
}

int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *utilization)
{
    utilization->gpu = 50;
    utilization->memory = 10;
    return enter("utilization", (long)handle - 1);
}

/* nvmlDeviceGetTemperature and nvmlDeviceGetPowerUsage are missing on purpose: an older library lacks functions. */
