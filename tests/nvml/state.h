/* The machine that the fixture plays, as its state file describes it.
 *
 * The file has one `key value` line per fact. A line `gpu` begins a card, and what follows is said of that card.
 * BERTH_NVML_STATE names the file; it is read again whenever it was replaced, so a test can change the machine
 * under a program that has the library loaded.
 *
 * A card with lines `profile` has MIG management. Its mode and its instances are in a second file, `<state>.mig`, which
 * the library changes under the lock of `<state>.mig.lock`. So they outlive the process that made them, as a driver's do.
 */
#ifndef STATE_H
#define STATE_H

#include "abi.h"

enum { MAX_GPUS = 64, MAX_LINKS = 36, MAX_MIGS = 16, MAX_PROCESSES = 32, MAX_EVENTS = 256, MAX_FAILS = 32 };
enum { MAX_PROFILES = 18, MAX_STARTS = 8, MAX_INSTANCES = 8, MAX_COMPUTES = 8 };
enum { TEXT = 96 };

struct link {
    int present, active;
    enum link_end end;
    char remote[TEXT];
};

struct mig {
    char uuid[TEXT], profile[TEXT];
    unsigned gpu_instance, compute_instance, gpu_slices, compute_slices;
    u64 memory_mib;
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};

struct fail {
    char function[TEXT];
    int code;
};

/* A kind of GPU instance that the card can have, and the memory slices at which one may begin. */
struct profile {
    unsigned number; /* NVML_GPU_INSTANCE_PROFILE_… */
    struct gpu_instance_profile_v2 info;
    unsigned size, starts[MAX_STARTS], start_count;
};

struct compute {
    unsigned id, profile, start;
};

struct instance {
    unsigned id, profile, start;
    struct compute computes[MAX_COMPUTES];
    unsigned compute_count;
};

struct gpu {
    char uuid[TEXT], name[TEXT], serial[TEXT], bus_id[TEXT];
    u64 minor, module, lost, virtualization, event_types;
    u64 memory, reserved, used, gpu_utilization, memory_utilization, encoder_utilization, decoder_utilization;
    u64 bus_width, sm_clock, max_sm_clock, memory_clock, max_memory_clock, throttle_reasons, supported_reasons;
    u64 power, power_limit, temperature, brand, architecture, major_capability, minor_capability, cores;
    u64 mig_capable, mig_mode, mig_pending, mig_idle;
    u64 ecc_mode, ecc_corrected, ecc_uncorrected, retired_pages, retired_pending;
    u64 remapped_corrected, remapped_uncorrected, remapped_pending, remapped_failure, recovery_action;
    u64 topology[MAX_GPUS], p2p[MAX_GPUS];
    struct link links[MAX_LINKS];
    struct mig migs[MAX_MIGS];
    struct process_info processes[MAX_PROCESSES];
    struct fail fails[MAX_FAILS];
    struct profile profiles[MAX_PROFILES];
    struct instance instances[MAX_INSTANCES];
    unsigned mig_count, process_count, fail_count, profile_count, instance_count;
};

struct event {
    u64 sequence;
    char uuid[TEXT];
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

struct machine {
    u64 loaded, cuda, wait_error, event_poll_ms, event_wait_ms, mig_renumbers;
    char driver[TEXT];
    struct gpu gpus[MAX_GPUS];
    struct event events[MAX_EVENTS];
    unsigned gpu_count, event_count;
};

/* Return the machine as its file describes it now, or NULL where there is no such file. */
__attribute__((visibility("hidden"))) const struct machine *machine_now(void);

/* Lock the file of instances and read the machine again, so that it can be changed; NULL where there is no machine. */
__attribute__((visibility("hidden"))) struct machine *begin_change(void);

/* Write the instances, if they were changed, and unlock the file. */
__attribute__((visibility("hidden"))) void end_change(int changed);

/* Return the profile of a card with this id, or NULL. */
__attribute__((visibility("hidden"))) const struct profile *profile_of(const struct gpu *gpu, unsigned id);

/* Return how many slices a compute instance of this profile has. */
__attribute__((visibility("hidden"))) unsigned compute_slices(unsigned profile);

#endif
