/* Stands in for HAMi-core: loaded before libcuda.so.1, it limits memory to its variable. */
#include <dlfcn.h>
#include <stdlib.h>

enum { OUT_OF_MEMORY = 2 };

static size_t used;

static size_t limit(void) {
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
    return text && *text ? strtoull(text, NULL, 10) : (size_t)-1;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    int (*next)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    int code = next(free_bytes, total);
    if (*total > limit()) *total = limit();
    if (*free_bytes > *total - used) *free_bytes = *total - used;
    return code;
}

int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) {
    int (*next)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    if (used + bytes > limit()) return OUT_OF_MEMORY;
    used += bytes;
    return next(memory, bytes);
}
