/* A CUDA driver over the CPU's memory: what tasks/backends/shared/cuda_driver.py calls of libcuda.so.1, and nothing else.
   FARM_STUB_CUDA_BYTES bounds what may be allocated; FARM_STUB_CUDA_FAIL names a call that answers with error 700;
   FARM_STUB_CUDA_ECC: its memory is checked; FARM_STUB_CUDA_MIG: it is a slice. */
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <time.h>

static size_t used = 0;

static int fails(const char *name) {
    const char *asked = getenv("FARM_STUB_CUDA_FAIL");
    return asked && !strcmp(asked, name) ? 700 : 0; /* CUDA_ERROR_ILLEGAL_ADDRESS */
}

int cuInit(unsigned flags) { return fails("cuInit"); }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; /* CUDA_ERROR_INVALID_DEVICE */ }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_DEVICE";
    return 0;
}
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Stub GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 32 ? getenv("FARM_STUB_CUDA_ECC") != 0 : 0;
    return 0;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = i; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = i + (getenv("FARM_STUB_CUDA_MIG") ? 128 : 0);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    const char *bound = getenv("FARM_STUB_CUDA_BYTES");
    if (bound && used + size > strtoull(bound, 0, 10)) return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    size_t *block = malloc(sizeof(size_t) + size);
    *block = size;
    used += size;
    *address = (uint64_t)(block + 1);
    return 0;
}
int cuMemFree_v2(uint64_t address) { size_t *block = (size_t *)address - 1; used -= *block; free(block); return 0; }
int cuMemsetD8_v2(uint64_t address, unsigned char byte, size_t size) { memset((void *)address, byte, size); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)to, from, size); return fails("cuMemcpyHtoD_v2"); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)1; return 0; }
int cuStreamSynchronize(void *stream) { return fails("cuStreamSynchronize"); }
int cuEventCreate(void **event, unsigned flags) { *event = malloc(sizeof(struct timespec)); return 0; }
int cuEventRecord(void *event, void *stream) { clock_gettime(CLOCK_MONOTONIC, event); return 0; }
int cuEventElapsedTime(float *ms, void *first, void *last) {
    struct timespec *a = first, *b = last;
    *ms = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) / 1e6f;
    return 0;
}
