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
    UNKNOWN = 999,
};

enum link_end { END_GPU = 0, END_SWITCH = 2 };

typedef enum status status_t;
typedef unsigned long long u64;
typedef struct handle *device_t;

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
