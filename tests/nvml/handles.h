/* How the library's functions look up what they are asked about. nvml.c has the cards, mig.c the MIG instances. */
#ifndef HANDLES_H
#define HANDLES_H

#include "state.h"

#include <pthread.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* What a handle refers to now; mig is NULL for a whole card. */
struct target {
    const struct gpu *gpu;
    const struct mig *mig;
};

/* Held by every function of the library. */
extern HIDDEN pthread_mutex_t lock;

HIDDEN const struct machine *current(void);
HIDDEN status_t ready(void);
HIDDEN device_t handle_of(const char *uuid);
/* Look up a device. A function that the state file lets fail returns that error. */
HIDDEN status_t find(device_t handle, const char *function, struct target *target);
HIDDEN status_t failing(const struct gpu *gpu, const char *function);

/* Opens and ends the body of a function that asks about one device: holds the lock, and looks the device up. */
#define BEGIN(device)                                                                                                  \
    struct target at = {0};                                                                                            \
    pthread_mutex_lock(&lock);                                                                                         \
    status_t result = find(device, __func__, &at);                                                                     \
    if (result == SUCCESS) {
#define END                                                                                                            \
    }                                                                                                                  \
    pthread_mutex_unlock(&lock);                                                                                       \
    return result;

#endif
