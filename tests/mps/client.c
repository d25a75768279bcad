/* Allocates so many MiB of its first card, prints one line of JSON, and computes until CUDA reports an error, with which
   it ends: `client MEBIBYTES`. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes);
int cuDeviceGetAttribute(int *number, int attribute, int device);
int cuCtxSynchronize(void);

static void end(int number) { _exit(128 + number); }

int main(int count, char **arguments) {
    unsigned long long memory;
    size_t free_bytes = 0, total = 0;
    int threads = 0;
    signal(SIGTERM, end);
    cuInit(0);
    cuMemGetInfo_v2(&free_bytes, &total);
    cuDeviceGetAttribute(&threads, 16, 0);
    int error = cuMemAlloc_v2(&memory, (size_t)(count > 1 ? atoi(arguments[1]) : 0) << 20);
    printf("{\"memory\": %zu, \"threads\": %d, \"error\": %d}\n", total >> 20, threads, error);
    fflush(stdout);
    while (!error && !(error = cuCtxSynchronize())) usleep(50000);
    printf("{\"error\": %d}\n", error);
    return error & 0xff;
}
