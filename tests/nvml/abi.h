/* The part of NVML's binary interface that the fixture serves: codes and the layout of its structures. */
#ifndef ABI_H
#define ABI_H

enum status {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum link_end { END_GPU = 0, END_SWITCH = 2 };

typedef enum status status_t;
typedef unsigned long long u64;
typedef struct handle *device_t;
typedef struct instance_handle *instance_t; /* of a GPU instance or of a compute instance */

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory {
    u64 total, free, used;
};

struct memory_v2 {
    unsigned version;
    u64 total, reserved, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_slices, compute_slices;
    u64 memory_mib;
};

struct gpu_instance_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mib;
};

struct gpu_instance_profile_v2 {
    unsigned version;
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mib;
    char name[96];
};

struct compute_instance_profile {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};

struct compute_instance_profile_v2 {
    unsigned version;
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    char name[96];
};

struct placement {
    unsigned start, size;
};

struct gpu_instance_info {
    device_t device;
    unsigned id, profile;
    struct placement placement;
};

struct compute_instance_info {
    device_t device;
    instance_t gpu_instance;
    unsigned id, profile;
    struct placement placement;
};

struct process_info {
    unsigned pid;
    u64 used_memory;
    unsigned gpu_instance, compute_instance;
};

/* A field's value; of the union, only the members that are asked for. */
struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned value_type;
    status_t status;
    union {
        double as_double;
        unsigned as_unsigned;
    } value;
};

struct event_data {
    device_t device;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

#endif
