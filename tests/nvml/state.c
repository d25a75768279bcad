#include "state.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ITEMS(array) (sizeof(array) / sizeof((array)[0]))

/* Where each fact that is one number or one text is stored. */
struct field {
    const char *key;
    int is_text;
    size_t offset;
};

#define NUMBER(key) {#key, 0, offsetof(struct gpu, key)}
#define STRING(key) {#key, 1, offsetof(struct gpu, key)}

static const struct field GPU_FIELDS[] = {
    STRING(uuid),
    STRING(name),
    STRING(serial),
    STRING(bus_id),
    NUMBER(minor),
    NUMBER(module),
    NUMBER(lost),
    NUMBER(virtualization),
    NUMBER(event_types),
    NUMBER(memory),
    NUMBER(reserved),
    NUMBER(used),
    NUMBER(gpu_utilization),
    NUMBER(memory_utilization),
    NUMBER(encoder_utilization),
    NUMBER(decoder_utilization),
    NUMBER(bus_width),
    NUMBER(sm_clock),
    NUMBER(max_sm_clock),
    NUMBER(memory_clock),
    NUMBER(max_memory_clock),
    NUMBER(throttle_reasons),
    NUMBER(supported_reasons),
    NUMBER(power),
    NUMBER(power_limit),
    NUMBER(temperature),
    NUMBER(brand),
    NUMBER(architecture),
    NUMBER(major_capability),
    NUMBER(minor_capability),
    NUMBER(cores),
    NUMBER(mig_capable),
    NUMBER(mig_mode),
    NUMBER(mig_pending),
    NUMBER(mig_idle),
    NUMBER(ecc_mode),
    NUMBER(ecc_corrected),
    NUMBER(ecc_uncorrected),
    NUMBER(retired_pages),
    NUMBER(retired_pending),
    NUMBER(remapped_corrected),
    NUMBER(remapped_uncorrected),
    NUMBER(remapped_pending),
    NUMBER(remapped_failure),
    NUMBER(recovery_action),
};

static const struct field MACHINE_FIELDS[] = {
    {"loaded", 0, offsetof(struct machine, loaded)},
    {"cuda", 0, offsetof(struct machine, cuda)},
    {"wait_error", 0, offsetof(struct machine, wait_error)},
    {"event_poll_ms", 0, offsetof(struct machine, event_poll_ms)},
    {"event_wait_ms", 0, offsetof(struct machine, event_wait_ms)},
    {"mig_renumbers", 0, offsetof(struct machine, mig_renumbers)},
    {"driver", 1, offsetof(struct machine, driver)},
};

static struct machine machine;
static struct stat seen, seen_instances;
static int lock_file = -1;

static int set_field(const struct field *fields, size_t count, void *target, const char *key, const char *value)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(fields[i].key, key) != 0)
            continue;
        char *place = (char *)target + fields[i].offset;
        if (fields[i].is_text)
            snprintf(place, TEXT, "%s", value);
        else
            *(u64 *)(void *)place = strtoull(value, NULL, 0);
        return 1;
    }
    return 0;
}

/* Facts of a card that are lists. Each reader takes the line's value and says whether it could read it. */

static int read_link(struct gpu *gpu, const char *value)
{
    unsigned index;
    struct link link = {.present = 1};
    char end[8];
    if (sscanf(value, "%u %d %7s %95s", &index, &link.active, end, link.remote) != 4 || index >= MAX_LINKS)
        return 0;
    link.end = strcmp(end, "switch") == 0 ? END_SWITCH : END_GPU;
    gpu->links[index] = link;
    return 1;
}

static int read_mig(struct gpu *gpu, const char *value)
{
    struct mig mig = {0};
    if (gpu->mig_count == MAX_MIGS ||
        sscanf(value, "%95s %95s %u %u %u %u %llu %u %u %u %u %u %u", mig.uuid, mig.profile, &mig.gpu_instance,
               &mig.compute_instance, &mig.gpu_slices, &mig.compute_slices, &mig.memory_mib, &mig.multiprocessors,
               &mig.copy_engines, &mig.decoders, &mig.encoders, &mig.jpegs, &mig.ofas) != 13)
        return 0;
    gpu->migs[gpu->mig_count++] = mig;
    return 1;
}

static int read_process(struct gpu *gpu, const char *value)
{
    struct process_info process = {0};
    if (gpu->process_count == MAX_PROCESSES ||
        sscanf(value, "%u %llu %u %u", &process.pid, &process.used_memory, &process.gpu_instance,
               &process.compute_instance) != 4)
        return 0;
    gpu->processes[gpu->process_count++] = process;
    return 1;
}

static int read_fail(struct gpu *gpu, const char *value)
{
    struct fail fail = {0};
    if (gpu->fail_count == MAX_FAILS || sscanf(value, "%95s %d", fail.function, &fail.code) != 2)
        return 0;
    gpu->fails[gpu->fail_count++] = fail;
    return 1;
}

static int read_profile(struct gpu *gpu, const char *value)
{
    struct profile profile = {0};
    struct gpu_instance_profile_v2 *info = &profile.info;
    char name[TEXT - 4], starts[TEXT];
    if (gpu->profile_count == MAX_PROFILES ||
        sscanf(value, "%u %u %91s %u %u %u %u %u %u %u %u %u %llu %u %95s", &profile.number, &info->id, name,
               &info->slices, &info->instances, &info->multiprocessors, &info->copy_engines, &info->decoders,
               &info->encoders, &info->jpegs, &info->ofas, &info->p2p, &info->memory_mib, &profile.size, starts) != 15)
        return 0;
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    for (char *start = strtok(starts, ","); start && profile.start_count < MAX_STARTS; start = strtok(NULL, ","))
        profile.starts[profile.start_count++] = (unsigned)strtoul(start, NULL, 0);
    gpu->profiles[gpu->profile_count++] = profile;
    return 1;
}

static int read_peer(u64 *row, const char *value)
{
    unsigned other;
    u64 level;
    if (sscanf(value, "%u %llu", &other, &level) != 2 || other >= MAX_GPUS)
        return 0;
    row[other] = level;
    return 1;
}

static int read_topology(struct gpu *gpu, const char *value)
{
    return read_peer(gpu->topology, value);
}

static int read_p2p(struct gpu *gpu, const char *value)
{
    return read_peer(gpu->p2p, value);
}

static const struct {
    const char *key;
    int (*read)(struct gpu *, const char *);
} GPU_LISTS[] = {
    {"link", read_link},   {"mig", read_mig},           {"process", read_process},
    {"fail", read_fail},   {"topology", read_topology}, {"p2p", read_p2p},
    {"profile", read_profile},
};

static int read_event(struct machine *to, const char *value)
{
    struct event event = {0};
    if (to->event_count == MAX_EVENTS || sscanf(value, "%llu %95s %llu %llu %u %u", &event.sequence, event.uuid, &event.type,
                                                &event.data, &event.gpu_instance, &event.compute_instance) != 6)
        return 0;
    to->events[to->event_count++] = event;
    return 1;
}

static int set_gpu(struct gpu *gpu, const char *key, const char *value)
{
    for (size_t i = 0; i < ITEMS(GPU_LISTS); i++)
        if (strcmp(GPU_LISTS[i].key, key) == 0)
            return GPU_LISTS[i].read(gpu, value);
    return set_field(GPU_FIELDS, ITEMS(GPU_FIELDS), gpu, key, value);
}

static int set(struct machine *to, const char *key, const char *value)
{
    if (strcmp(key, "gpu") == 0)
        return to->gpu_count < MAX_GPUS && ++to->gpu_count;
    if (strcmp(key, "event") == 0)
        return read_event(to, value);
    if (set_field(MACHINE_FIELDS, ITEMS(MACHINE_FIELDS), to, key, value))
        return 1;
    return to->gpu_count && set_gpu(&to->gpus[to->gpu_count - 1], key, value);
}

/* A line that cannot be read is a mistake of the test: end the program at once, so that it is noticed. */
static void read_file(FILE *file, const char *path)
{
    char line[512];
    /* Only what was used: the whole is more than a megabyte, and a change of MIG reads the file twice. */
    memset(machine.gpus, 0, machine.gpu_count * sizeof machine.gpus[0]);
    memset(machine.events, 0, machine.event_count * sizeof machine.events[0]);
    memset(&machine, 0, offsetof(struct machine, gpus));
    machine.gpu_count = machine.event_count = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, ' ');
        if (value)
            *value++ = '\0';
        if (!set(&machine, line, value ? value : "")) {
            fprintf(stderr, "%s: cannot read the line \"%s %s\"\n", path, line, value ? value : "");
            abort();
        }
    }
}

/* The file of instances: the modes and minors of cards, and what is made on them. */

static const char *instances_path(const char *suffix)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s.mig%s", getenv("BERTH_NVML_STATE"), suffix);
    return path;
}

static struct gpu *gpu_of(const char *uuid)
{
    for (unsigned i = 0; i < machine.gpu_count; i++)
        if (strcmp(machine.gpus[i].uuid, uuid) == 0 && machine.gpus[i].profile_count)
            return &machine.gpus[i];
    return NULL;
}

const struct profile *profile_of(const struct gpu *gpu, unsigned id)
{
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].info.id == id)
            return &gpu->profiles[i];
    return NULL;
}

unsigned compute_slices(unsigned profile)
{
    static const unsigned SLICES[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    return profile < ITEMS(SLICES) ? SLICES[profile] : 0;
}

/* Lines of cards that are not there any more have no effect. */
static void apply_instance_line(const char *line)
{
    char kind[16], uuid[TEXT];
    unsigned a, b = 0, c = 0, d = 0;
    if (sscanf(line, "%15s %95s %u %u %u %u", kind, uuid, &a, &b, &c, &d) < 3)
        abort();
    struct gpu *gpu = gpu_of(uuid);
    if (!gpu)
        return;
    if (strcmp(kind, "mode") == 0) {
        gpu->mig_mode = a;
        gpu->mig_pending = b;
    } else if (strcmp(kind, "minor") == 0) {
        gpu->minor = a;
    } else if (strcmp(kind, "instance") == 0 && gpu->instance_count < MAX_INSTANCES) {
        gpu->instances[gpu->instance_count++] = (struct instance){.id = a, .profile = b, .start = c};
    } else if (strcmp(kind, "compute") == 0) {
        for (unsigned i = 0; i < gpu->instance_count; i++)
            if (gpu->instances[i].id == a && gpu->instances[i].compute_count < MAX_COMPUTES)
                gpu->instances[i].computes[gpu->instances[i].compute_count++] = (struct compute){b, c, d};
    }
}

/* The UUID follows from card and ids, so an instance that is made again has the UUID that the one before it had. */
static void name_uuid(char *uuid, const char *card, unsigned gpu_instance, unsigned compute_instance)
{
    u64 hash = 14695981039346656037ULL + 8 * gpu_instance + compute_instance;
    for (const char *at = card; *at; at++)
        hash = (hash ^ (u64)*at) * 1099511628211ULL;
    snprintf(uuid, TEXT, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(hash >> 32), (unsigned)(hash >> 16) & 0xFFFF,
             gpu_instance & 0xFFF, compute_instance & 0xFFF, (hash * 31) & 0xFFFFFFFFFFFFULL);
}

/* A MIG device is a compute instance. `1c.3g.40gb` is a part of the GPU instance `3g.40gb`. */
static void list_mig_devices(struct gpu *gpu)
{
    gpu->mig_count = 0;
    for (unsigned i = 0; i < gpu->instance_count; i++) {
        const struct instance *instance = &gpu->instances[i];
        const struct gpu_instance_profile_v2 *info = &profile_of(gpu, instance->profile)->info;
        for (unsigned c = 0; c < instance->compute_count && gpu->mig_count < MAX_MIGS; c++) {
            unsigned slices = compute_slices(instance->computes[c].profile);
            struct mig *mig = &gpu->migs[gpu->mig_count++];
            *mig = (struct mig){.gpu_instance = instance->id, .compute_instance = instance->computes[c].id,
                                .gpu_slices = info->slices, .compute_slices = slices, .memory_mib = info->memory_mib,
                                .multiprocessors = info->multiprocessors * slices / info->slices,
                                .copy_engines = info->copy_engines, .decoders = info->decoders,
                                .encoders = info->encoders, .jpegs = info->jpegs, .ofas = info->ofas};
            name_uuid(mig->uuid, gpu->uuid, mig->gpu_instance, mig->compute_instance);
            if (slices == info->slices)
                snprintf(mig->profile, TEXT, "%.91s", info->name + 4);
            else
                snprintf(mig->profile, TEXT, "%uc.%.80s", slices, info->name + 4);
        }
    }
}

static void read_instances(void)
{
    char line[512];
    FILE *file = fopen(instances_path(""), "r");
    memset(&seen_instances, 0, sizeof seen_instances);
    if (file) {
        fstat(fileno(file), &seen_instances);
        while (fgets(line, sizeof line, file))
            apply_instance_line(line);
        fclose(file);
    }
    for (unsigned i = 0; i < machine.gpu_count; i++)
        if (machine.gpus[i].profile_count)
            list_mig_devices(&machine.gpus[i]);
}

static void write_instances(void)
{
    char draft[1024];
    snprintf(draft, sizeof draft, "%s", instances_path(".new"));
    FILE *file = fopen(draft, "w");
    if (!file)
        abort();
    for (unsigned i = 0; i < machine.gpu_count; i++) {
        const struct gpu *gpu = &machine.gpus[i];
        if (!gpu->profile_count)
            continue;
        fprintf(file, "mode %s %llu %llu\n", gpu->uuid, gpu->mig_mode, gpu->mig_pending);
        fprintf(file, "minor %s %llu\n", gpu->uuid, gpu->minor);
        for (const struct instance *one = gpu->instances; one < gpu->instances + gpu->instance_count; one++) {
            fprintf(file, "instance %s %u %u %u\n", gpu->uuid, one->id, one->profile, one->start);
            for (unsigned c = 0; c < one->compute_count; c++)
                fprintf(file, "compute %s %u %u %u %u\n", gpu->uuid, one->id, one->computes[c].id,
                        one->computes[c].profile, one->computes[c].start);
        }
    }
    if (fclose(file) != 0 || rename(draft, instances_path("")) != 0)
        abort();
}

static int is_same(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static const struct machine *read_machine(int again)
{
    const char *path = getenv("BERTH_NVML_STATE");
    struct stat now, instances = {0};
    if (!path || stat(path, &now) != 0)
        return NULL;
    if (stat(instances_path(""), &instances) != 0)
        memset(&instances, 0, sizeof instances);
    if (!again && is_same(&now, &seen) && is_same(&instances, &seen_instances))
        return &machine;
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    fstat(fileno(file), &seen);
    read_file(file, path);
    fclose(file);
    read_instances();
    return &machine;
}

const struct machine *machine_now(void)
{
    return read_machine(0);
}

struct machine *begin_change(void)
{
    if (!getenv("BERTH_NVML_STATE"))
        return NULL;
    lock_file = open(instances_path(".lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_file >= 0 && flock(lock_file, LOCK_EX) != 0) /* in a folder that cannot be written, nothing changes */
        abort();
    return read_machine(1) ? &machine : NULL;
}

void end_change(int changed)
{
    if (changed) {
        write_instances();
        read_machine(1);
    }
    if (lock_file >= 0)
        close(lock_file);
    lock_file = -1;
}
