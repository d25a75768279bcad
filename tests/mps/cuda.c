/* Stands in for libcuda.so.1, as a client of tests/mps/control.py: it connects to the daemon in the pipe folder with the
   limits of its variables. Without a daemon it has no limits, as CUDA. Memory is only counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, MPS_SERVER_ENDED = 806, CARDS = 16, WHOLE = 80 * 1024 };

static int daemon_link = -1;
static double threads = 100;
static long limits[CARDS]; /* MiB; -1 for none */
static size_t used;

static const char *variable(const char *name) {
    const char *text = getenv(name);
    return text ? text : "";
}

static void ask(void) {
    char line[4096], *rest;
    ssize_t size = snprintf(line, sizeof line, "client %s %s\n", variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
                            variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    if (write(daemon_link, line, size) != size || (size = read(daemon_link, line, sizeof line - 1)) <= 0) abort();
    line[size] = 0;
    threads = strtod(line, &rest);
    for (int card = 0; card < CARDS; card++) limits[card] = strtol(rest, &rest, 10);
}

int cuInit(unsigned flags) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    (void)flags;
    for (int card = 0; card < CARDS; card++) limits[card] = -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    daemon_link = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(daemon_link, (struct sockaddr *)&address, sizeof address) == 0) {
        ask();
        return 0;
    }
    close(daemon_link);
    daemon_link = -1;
    return 0;
}

int cuCtxSynchronize(void) {
    char byte;
    int ended = daemon_link >= 0 && recv(daemon_link, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    return ended ? MPS_SERVER_ENDED : 0;
}

static size_t whole(void) { return (size_t)(limits[0] < 0 ? WHOLE : limits[0]) << 20; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = whole();
    *free_bytes = *total - used;
    return cuCtxSynchronize();
}

int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) {
    int code = cuCtxSynchronize();
    if (code) return code;
    if (bytes > whole() - used) return OUT_OF_MEMORY;
    used += bytes;
    *memory = used;
    return 0;
}

/* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of a card with 100. */
int cuDeviceGetAttribute(int *number, int attribute, int device) {
    (void)attribute, (void)device;
    *number = (int)threads;
    return 0;
}
