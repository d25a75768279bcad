/* MIG: the mode of a card, its GPU instances and their compute instances.
 *
 * A handle of an instance stands for its ids, and ids are used again, as a driver does. If BERTH_NVML_CRASH is N, the
 * process is killed when its N-th call that changes something begins, and if it is `N+`, when that call has had its
 * effect.
 */
#include "handles.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_INSTANCE_HANDLES = 4096, HOPPER = 9, COMPUTE_PROFILES = 9, SHARED_ENGINES = 0, PASSTHROUGH = 1 };
enum { VERSION_2 = 2 };

static const unsigned ANY = 0xFFFFFFFF;

struct instance_handle {
    device_t device;
    unsigned gpu_instance, compute_instance;
};

/* What a handle of an instance refers to now. */
struct place {
    struct gpu *gpu;
    struct instance *instance;
    struct compute *compute;
};

static struct instance_handle instance_handles[MAX_INSTANCE_HANDLES];

static void crash_if(char when)
{
    static unsigned calls;
    const char *text = getenv("BERTH_NVML_CRASH");
    unsigned at = 0;
    char after = '-';
    if (!text || sscanf(text, "%u%c", &at, &after) < 1)
        return;
    calls += when == '-';
    if (calls == at && after == when)
        kill(getpid(), SIGKILL);
}

static int is_change(const char *function)
{
    return strstr(function, "Set") || strstr(function, "Create") || strstr(function, "Destroy");
}

static instance_t instance_handle(device_t device, unsigned gpu_instance, unsigned compute_instance)
{
    for (instance_t at = instance_handles; at < instance_handles + MAX_INSTANCE_HANDLES; at++) {
        if (!at->device)
            *at = (struct instance_handle){device, gpu_instance, compute_instance};
        if (at->device == device && at->gpu_instance == gpu_instance && at->compute_instance == compute_instance)
            return at;
    }
    abort();
}

static struct instance *by_id(struct gpu *gpu, unsigned id)
{
    for (unsigned i = 0; i < gpu->instance_count; i++)
        if (gpu->instances[i].id == id)
            return &gpu->instances[i];
    return NULL;
}

static struct compute *compute_by_id(struct instance *instance, unsigned id)
{
    for (unsigned i = 0; i < instance->compute_count; i++)
        if (instance->computes[i].id == id)
            return &instance->computes[i];
    return NULL;
}

/* Management needs a whole card with profiles. */
static status_t find_card(device_t device, const char *function, struct place *at)
{
    struct target target = {0};
    status_t result = find(device, function, &target);
    if (result != SUCCESS)
        return result;
    at->gpu = (struct gpu *)(size_t)target.gpu; /* the machine is this library's own, and locked */
    if (target.mig)
        return INVALID_ARGUMENT;
    return target.gpu->mig_capable ? SUCCESS : NOT_SUPPORTED;
}

static status_t find_instance(instance_t handle, const char *function, struct place *at)
{
    if (!handle)
        return INVALID_ARGUMENT;
    status_t result = find_card(handle->device, function, at);
    if (result != SUCCESS)
        return result;
    at->instance = by_id(at->gpu, handle->gpu_instance);
    if (!at->instance)
        return NOT_FOUND;
    at->compute = compute_by_id(at->instance, handle->compute_instance);
    return handle->compute_instance == ANY || at->compute ? SUCCESS : NOT_FOUND;
}

/* Opens and ends the body of a function: holds both locks, so what other processes made is seen, and looks up. */
#define MIG_BEGIN(look_up, handle)                                                                                     \
    struct place at = {0};                                                                                             \
    int changed = 0, counts = is_change(__func__);                                                                     \
    pthread_mutex_lock(&lock);                                                                                         \
    if (counts)                                                                                                        \
        crash_if('-');                                                                                                 \
    begin_change();                                                                                                    \
    status_t result = look_up(handle, __func__, &at);                                                                  \
    if (result == SUCCESS) {
#define MIG_END                                                                                                        \
    }                                                                                                                  \
    end_change(changed);                                                                                               \
    if (counts)                                                                                                        \
        crash_if('+');                                                                                                 \
    pthread_mutex_unlock(&lock);                                                                                       \
    return result;

static int is_used(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance)
{
    for (unsigned i = 0; i < gpu->process_count; i++) {
        const struct process_info *process = &gpu->processes[i];
        if ((gpu_instance == ANY || process->gpu_instance == gpu_instance) &&
            (compute_instance == ANY || process->compute_instance == compute_instance))
            return 1;
    }
    return 0;
}

/* The mode. */

static unsigned next_minor(void)
{
    u64 next = 0;
    for (unsigned i = 0; i < current()->gpu_count; i++)
        next = current()->gpus[i].minor >= next ? current()->gpus[i].minor + 1 : next;
    return (unsigned)next;
}

/* From Hopper on the mode changes at once. Before, the driver resets a card that no other client has open. */
status_t nvmlDeviceSetMigMode(device_t device, unsigned mode, status_t *activation);
status_t nvmlDeviceSetMigMode(device_t device, unsigned mode, status_t *activation)
{
    MIG_BEGIN(find_card, device)
        int used = is_used(at.gpu, ANY, ANY) || at.gpu->instance_count;
        int at_once = at.gpu->architecture >= HOPPER || (at.gpu->mig_idle && at.gpu->virtualization != PASSTHROUGH);
        *activation = SUCCESS;
        if (mode > 1)
            result = INVALID_ARGUMENT;
        else if (used && mode != at.gpu->mig_mode && (at.gpu->instance_count || at.gpu->architecture >= HOPPER))
            result = IN_USE;
        else {
            changed = 1;
            at.gpu->mig_pending = mode;
            if (mode != at.gpu->mig_mode && (used || !at_once))
                *activation = at.gpu->virtualization == PASSTHROUGH ? RESET_REQUIRED : IN_USE;
            else if (mode != at.gpu->mig_mode) {
                at.gpu->mig_mode = mode;
                at.gpu->minor = current()->mig_renumbers ? next_minor() : at.gpu->minor;
            }
        }
    MIG_END
}

status_t nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending);
status_t nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending)
{
    BEGIN(device)
        *now = (unsigned)at.gpu->mig_mode;
        *pending = (unsigned)at.gpu->mig_pending;
        result = at.gpu->mig_capable ? SUCCESS : NOT_SUPPORTED;
    END
}

/* Profiles and placements of GPU instances; they are reported in either mode. */

static const struct profile *by_number(const struct gpu *gpu, unsigned number)
{
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].number == number)
            return &gpu->profiles[i];
    return NULL;
}

static status_t tell_profile(const struct profile *profile, struct gpu_instance_profile_v2 *info)
{
    if (!profile)
        return NOT_SUPPORTED;
    unsigned version = info->version;
    if (version >> 24 != VERSION_2 || (version & 0xFFFFFF) != sizeof *info)
        return ARGUMENT_VERSION_MISMATCH;
    *info = profile->info;
    info->version = version;
    return SUCCESS;
}

status_t nvmlDeviceGetGpuInstanceProfileInfo(device_t device, unsigned number, struct gpu_instance_profile *info);
status_t nvmlDeviceGetGpuInstanceProfileInfo(device_t device, unsigned number, struct gpu_instance_profile *info)
{
    MIG_BEGIN(find_card, device)
        const struct profile *profile = by_number(at.gpu, number);
        result = number >= MAX_PROFILES ? INVALID_ARGUMENT : profile ? SUCCESS : NOT_SUPPORTED;
        if (profile) {
            const struct gpu_instance_profile_v2 *all = &profile->info;
            *info = (struct gpu_instance_profile){all->id, all->p2p, all->slices, all->instances, all->multiprocessors,
                                                  all->copy_engines, all->decoders, all->encoders, all->jpegs,
                                                  all->ofas, all->memory_mib};
        }
    MIG_END
}

status_t nvmlDeviceGetGpuInstanceProfileInfoV(device_t device, unsigned number, struct gpu_instance_profile_v2 *info);
status_t nvmlDeviceGetGpuInstanceProfileInfoV(device_t device, unsigned number, struct gpu_instance_profile_v2 *info)
{
    MIG_BEGIN(find_card, device)
        result = number >= MAX_PROFILES ? INVALID_ARGUMENT : tell_profile(by_number(at.gpu, number), info);
    MIG_END
}

status_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(device_t device, unsigned id, struct gpu_instance_profile_v2 *info);
status_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(device_t device, unsigned id, struct gpu_instance_profile_v2 *info)
{
    MIG_BEGIN(find_card, device) result = tell_profile(profile_of(at.gpu, id), info);
    MIG_END
}

status_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_t device, unsigned id, struct placement *places,
                                                       unsigned *count);
status_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_t device, unsigned id, struct placement *places,
                                                       unsigned *count)
{
    MIG_BEGIN(find_card, device)
        const struct profile *profile = profile_of(at.gpu, id);
        if (!profile)
            result = INVALID_ARGUMENT;
        else if (places && *count < profile->start_count)
            result = INSUFFICIENT_SIZE;
        else {
            *count = profile->start_count;
            for (unsigned i = 0; places && i < *count; i++)
                places[i] = (struct placement){profile->starts[i], profile->size};
        }
    MIG_END
}

status_t nvmlDeviceGetGpuInstancePossiblePlacements(device_t device, unsigned id, struct placement *places,
                                                    unsigned *count);
status_t nvmlDeviceGetGpuInstancePossiblePlacements(device_t device, unsigned id, struct placement *places,
                                                    unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, places, count);
}

/* Whether the parts of a card suffice for an instance more. */

static int is_allowed(const struct profile *profile, unsigned start)
{
    for (unsigned i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == start)
            return 1;
    return 0;
}

/* The largest profile has all of a card's parts. */
static const struct profile *whole(const struct gpu *gpu)
{
    const struct profile *largest = &gpu->profiles[0];
    for (unsigned i = 1; i < gpu->profile_count; i++)
        if (gpu->profiles[i].size > largest->size)
            largest = &gpu->profiles[i];
    return largest;
}

static int engines_suffice(const struct gpu *gpu, const struct profile *profile)
{
    const struct gpu_instance_profile_v2 *all = &whole(gpu)->info;
    struct gpu_instance_profile_v2 sum = profile->info;
    unsigned alike = 1;
    for (unsigned i = 0; i < gpu->instance_count; i++) {
        const struct gpu_instance_profile_v2 *info = &profile_of(gpu, gpu->instances[i].profile)->info;
        alike += info->id == profile->info.id;
        sum.multiprocessors += info->multiprocessors;
        sum.copy_engines += info->copy_engines;
        sum.decoders += info->decoders;
        sum.encoders += info->encoders;
        sum.jpegs += info->jpegs;
        sum.ofas += info->ofas;
    }
    return alike <= profile->info.instances && sum.multiprocessors <= all->multiprocessors &&
           sum.copy_engines <= all->copy_engines && sum.decoders <= all->decoders && sum.encoders <= all->encoders &&
           sum.jpegs <= all->jpegs && sum.ofas <= all->ofas;
}

static int is_free(const struct gpu *gpu, const struct profile *profile, unsigned start)
{
    for (unsigned i = 0; i < gpu->instance_count; i++) {
        const struct instance *other = &gpu->instances[i];
        if (start < other->start + profile_of(gpu, other->profile)->size && other->start < start + profile->size)
            return 0;
    }
    return 1;
}

static unsigned room(const struct gpu *gpu, const struct profile *profile)
{
    unsigned count = 0;
    for (unsigned i = 0; i < profile->start_count; i++)
        count += engines_suffice(gpu, profile) && is_free(gpu, profile, profile->starts[i]);
    return count;
}

/* Ids number the places as a heap does: the whole card is 0, its halves are 1 and 2, its quarters 3 to 6. */
static void add_instance(struct gpu *gpu, const struct profile *profile, unsigned start)
{
    gpu->instances[gpu->instance_count++] = (struct instance){
        .id = whole(gpu)->size / profile->size - 1 + start / profile->size, .profile = profile->info.id, .start = start};
}

/* The driver takes the place that leaves the most places for others, and the first of these. */
static unsigned best_start(const struct gpu *gpu, const struct profile *profile)
{
    unsigned best = ANY, most = 0;
    for (unsigned i = 0; i < profile->start_count; i++) {
        if (!is_free(gpu, profile, profile->starts[i]))
            continue;
        struct gpu after = *gpu;
        unsigned left = 1;
        add_instance(&after, profile, profile->starts[i]);
        for (unsigned p = 0; p < gpu->profile_count; p++)
            left += room(&after, &gpu->profiles[p]);
        if (left > most) {
            most = left;
            best = profile->starts[i];
        }
    }
    return best;
}

static status_t create(struct gpu *gpu, unsigned id, const struct placement *place)
{
    const struct profile *profile = profile_of(gpu, id);
    if (!gpu->mig_mode)
        return NOT_SUPPORTED;
    if (!profile || (place && (place->size != profile->size || !is_allowed(profile, place->start))))
        return INVALID_ARGUMENT;
    unsigned start = place ? place->start : best_start(gpu, profile);
    if (start == ANY || !is_free(gpu, profile, start) || !engines_suffice(gpu, profile))
        return INSUFFICIENT_RESOURCES;
    add_instance(gpu, profile, start);
    return SUCCESS;
}

status_t nvmlDeviceCreateGpuInstance(device_t device, unsigned id, instance_t *instance);
status_t nvmlDeviceCreateGpuInstance(device_t device, unsigned id, instance_t *instance)
{
    MIG_BEGIN(find_card, device)
        result = create(at.gpu, id, NULL);
        changed = result == SUCCESS;
        if (changed)
            *instance = instance_handle(device, at.gpu->instances[at.gpu->instance_count - 1].id, ANY);
    MIG_END
}

status_t nvmlDeviceCreateGpuInstanceWithPlacement(device_t device, unsigned id, const struct placement *place,
                                                  instance_t *instance);
status_t nvmlDeviceCreateGpuInstanceWithPlacement(device_t device, unsigned id, const struct placement *place,
                                                  instance_t *instance)
{
    MIG_BEGIN(find_card, device)
        result = place ? create(at.gpu, id, place) : INVALID_ARGUMENT;
        changed = result == SUCCESS;
        if (changed)
            *instance = instance_handle(device, at.gpu->instances[at.gpu->instance_count - 1].id, ANY);
    MIG_END
}

status_t nvmlDeviceGetGpuInstanceRemainingCapacity(device_t device, unsigned id, unsigned *count);
status_t nvmlDeviceGetGpuInstanceRemainingCapacity(device_t device, unsigned id, unsigned *count)
{
    MIG_BEGIN(find_card, device)
        const struct profile *profile = profile_of(at.gpu, id);
        struct gpu rest = *at.gpu;
        *count = 0;
        result = profile ? SUCCESS : INVALID_ARGUMENT;
        while (profile && create(&rest, id, NULL) == SUCCESS)
            ++*count;
    MIG_END
}

/* GPU instances. */

status_t nvmlGpuInstanceDestroy(instance_t instance);
status_t nvmlGpuInstanceDestroy(instance_t instance)
{
    MIG_BEGIN(find_instance, instance)
        if (at.instance->compute_count || is_used(at.gpu, at.instance->id, ANY))
            result = IN_USE;
        else {
            *at.instance = at.gpu->instances[--at.gpu->instance_count];
            changed = 1;
        }
    MIG_END
}

status_t nvmlDeviceGetGpuInstances(device_t device, unsigned profile, instance_t *instances, unsigned *count);
status_t nvmlDeviceGetGpuInstances(device_t device, unsigned profile, instance_t *instances, unsigned *count)
{
    MIG_BEGIN(find_card, device)
        if (!at.gpu->mig_mode)
            result = NOT_SUPPORTED;
        else if (!instances || !profile_of(at.gpu, profile))
            result = INVALID_ARGUMENT;
        else {
            *count = 0;
            for (unsigned i = 0; i < at.gpu->instance_count; i++)
                if (at.gpu->instances[i].profile == profile)
                    instances[(*count)++] = instance_handle(device, at.gpu->instances[i].id, ANY);
        }
    MIG_END
}

status_t nvmlDeviceGetGpuInstanceById(device_t device, unsigned id, instance_t *instance);
status_t nvmlDeviceGetGpuInstanceById(device_t device, unsigned id, instance_t *instance)
{
    MIG_BEGIN(find_card, device)
        result = !at.gpu->mig_mode ? NOT_SUPPORTED : by_id(at.gpu, id) ? SUCCESS : NOT_FOUND;
        if (result == SUCCESS)
            *instance = instance_handle(device, id, ANY);
    MIG_END
}

status_t nvmlGpuInstanceGetInfo(instance_t instance, struct gpu_instance_info *info);
status_t nvmlGpuInstanceGetInfo(instance_t instance, struct gpu_instance_info *info)
{
    MIG_BEGIN(find_instance, instance)
        unsigned size = profile_of(at.gpu, at.instance->profile)->size;
        *info = (struct gpu_instance_info){instance->device, at.instance->id, at.instance->profile,
                                           {at.instance->start, size}};
    MIG_END
}

/* Compute instances: a profile of c slices is there if the card has GPU instances of c slices. */

static int has_compute_profile(struct place at, unsigned profile)
{
    const struct gpu_instance_profile_v2 *info = &profile_of(at.gpu, at.instance->profile)->info;
    unsigned slices = compute_slices(profile);
    if (!slices || slices > info->slices)
        return 0;
    for (unsigned i = 0; i < at.gpu->profile_count; i++)
        if (at.gpu->profiles[i].info.slices == slices)
            return 1;
    return 0;
}

static int compute_is_free(const struct instance *instance, unsigned start, unsigned slices)
{
    for (unsigned i = 0; i < instance->compute_count; i++) {
        const struct compute *other = &instance->computes[i];
        if (start < other->start + compute_slices(other->profile) && other->start < start + slices)
            return 0;
    }
    return 1;
}

static status_t create_compute(struct place at, unsigned profile, const struct placement *place)
{
    const struct gpu_instance_profile_v2 *info = &profile_of(at.gpu, at.instance->profile)->info;
    unsigned slices = compute_slices(profile);
    if (!has_compute_profile(at, profile) || (place && place->size != slices))
        return INVALID_ARGUMENT;
    unsigned first = place ? place->start : 0, last = place ? place->start : info->slices - slices, id = 0;
    for (unsigned start = first; start <= last && start + slices <= info->slices; start++) {
        if (!compute_is_free(at.instance, start, slices))
            continue;
        while (compute_by_id(at.instance, id))
            id++;
        at.instance->computes[at.instance->compute_count++] = (struct compute){id, profile, start};
        return SUCCESS;
    }
    return INSUFFICIENT_RESOURCES;
}

static status_t tell_compute_profile(struct place at, unsigned profile, unsigned engines,
                                     struct compute_instance_profile_v2 *info)
{
    const struct gpu_instance_profile_v2 *gpu = &profile_of(at.gpu, at.instance->profile)->info;
    unsigned slices = compute_slices(profile), version = info->version;
    if (profile >= COMPUTE_PROFILES || engines != SHARED_ENGINES)
        return INVALID_ARGUMENT;
    if (!has_compute_profile(at, profile))
        return NOT_SUPPORTED;
    *info = (struct compute_instance_profile_v2){.version = version, .id = profile, .slices = slices,
                                                 .instances = gpu->slices / slices,
                                                 .multiprocessors = gpu->multiprocessors * slices / gpu->slices,
                                                 .copy_engines = gpu->copy_engines, .decoders = gpu->decoders,
                                                 .encoders = gpu->encoders, .jpegs = gpu->jpegs, .ofas = gpu->ofas};
    if (slices == gpu->slices)
        snprintf(info->name, sizeof info->name, "%s", gpu->name);
    else
        snprintf(info->name, sizeof info->name, "MIG %uc.%.80s", slices, gpu->name + 4);
    return SUCCESS;
}

status_t nvmlGpuInstanceGetComputeInstanceProfileInfo(instance_t instance, unsigned profile, unsigned engines,
                                                      struct compute_instance_profile *info);
status_t nvmlGpuInstanceGetComputeInstanceProfileInfo(instance_t instance, unsigned profile, unsigned engines,
                                                      struct compute_instance_profile *info)
{
    MIG_BEGIN(find_instance, instance)
        struct compute_instance_profile_v2 all = {0};
        result = tell_compute_profile(at, profile, engines, &all);
        if (result == SUCCESS)
            *info = (struct compute_instance_profile){all.id, all.slices, all.instances, all.multiprocessors,
                                                      all.copy_engines, all.decoders, all.encoders, all.jpegs,
                                                      all.ofas};
    MIG_END
}

status_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance_t instance, unsigned profile, unsigned engines,
                                                       struct compute_instance_profile_v2 *info);
status_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance_t instance, unsigned profile, unsigned engines,
                                                       struct compute_instance_profile_v2 *info)
{
    MIG_BEGIN(find_instance, instance)
        int is_version_2 = info->version >> 24 == VERSION_2 && (info->version & 0xFFFFFF) == sizeof *info;
        result = is_version_2 ? tell_compute_profile(at, profile, engines, info) : ARGUMENT_VERSION_MISMATCH;
    MIG_END
}

status_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance_t instance, unsigned profile, unsigned *count);
status_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance_t instance, unsigned profile, unsigned *count)
{
    MIG_BEGIN(find_instance, instance)
        struct instance rest = *at.instance;
        struct place trial = {at.gpu, &rest, NULL};
        *count = 0;
        result = has_compute_profile(at, profile) ? SUCCESS : INVALID_ARGUMENT;
        while (result == SUCCESS && create_compute(trial, profile, NULL) == SUCCESS)
            ++*count;
    MIG_END
}

status_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance_t instance, unsigned profile,
                                                             struct placement *places, unsigned *count);
status_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance_t instance, unsigned profile,
                                                             struct placement *places, unsigned *count)
{
    MIG_BEGIN(find_instance, instance)
        unsigned slices = compute_slices(profile);
        unsigned all = profile_of(at.gpu, at.instance->profile)->info.slices - slices + 1;
        if (!has_compute_profile(at, profile))
            result = INVALID_ARGUMENT;
        else if (places && *count < all)
            result = INSUFFICIENT_SIZE;
        else {
            *count = all;
            for (unsigned i = 0; places && i < all; i++)
                places[i] = (struct placement){i, slices};
        }
    MIG_END
}

status_t nvmlGpuInstanceCreateComputeInstance(instance_t instance, unsigned profile, instance_t *compute);
status_t nvmlGpuInstanceCreateComputeInstance(instance_t instance, unsigned profile, instance_t *compute)
{
    MIG_BEGIN(find_instance, instance)
        result = create_compute(at, profile, NULL);
        changed = result == SUCCESS;
        if (changed)
            *compute = instance_handle(instance->device, at.instance->id,
                                       at.instance->computes[at.instance->compute_count - 1].id);
    MIG_END
}

status_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance_t instance, unsigned profile,
                                                           const struct placement *place, instance_t *compute);
status_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance_t instance, unsigned profile,
                                                           const struct placement *place, instance_t *compute)
{
    MIG_BEGIN(find_instance, instance)
        result = place ? create_compute(at, profile, place) : INVALID_ARGUMENT;
        changed = result == SUCCESS;
        if (changed)
            *compute = instance_handle(instance->device, at.instance->id,
                                       at.instance->computes[at.instance->compute_count - 1].id);
    MIG_END
}

status_t nvmlComputeInstanceDestroy(instance_t compute);
status_t nvmlComputeInstanceDestroy(instance_t compute)
{
    MIG_BEGIN(find_instance, compute)
        if (is_used(at.gpu, at.instance->id, at.compute->id))
            result = IN_USE;
        else {
            *at.compute = at.instance->computes[--at.instance->compute_count];
            changed = 1;
        }
    MIG_END
}

status_t nvmlGpuInstanceGetComputeInstances(instance_t instance, unsigned profile, instance_t *computes,
                                            unsigned *count);
status_t nvmlGpuInstanceGetComputeInstances(instance_t instance, unsigned profile, instance_t *computes,
                                            unsigned *count)
{
    MIG_BEGIN(find_instance, instance)
        result = computes && has_compute_profile(at, profile) ? SUCCESS : INVALID_ARGUMENT;
        if (result == SUCCESS) {
            *count = 0;
            for (unsigned i = 0; i < at.instance->compute_count; i++)
                if (at.instance->computes[i].profile == profile)
                    computes[(*count)++] =
                        instance_handle(instance->device, at.instance->id, at.instance->computes[i].id);
        }
    MIG_END
}

status_t nvmlGpuInstanceGetComputeInstanceById(instance_t instance, unsigned id, instance_t *compute);
status_t nvmlGpuInstanceGetComputeInstanceById(instance_t instance, unsigned id, instance_t *compute)
{
    MIG_BEGIN(find_instance, instance)
        result = compute_by_id(at.instance, id) ? SUCCESS : NOT_FOUND;
        if (result == SUCCESS)
            *compute = instance_handle(instance->device, at.instance->id, id);
    MIG_END
}

static device_t mig_device(struct place at)
{
    for (unsigned i = 0; i < at.gpu->mig_count; i++)
        if (at.gpu->migs[i].gpu_instance == at.instance->id && at.gpu->migs[i].compute_instance == at.compute->id)
            return handle_of(at.gpu->migs[i].uuid);
    abort();
}

status_t nvmlComputeInstanceGetInfo_v2(instance_t compute, struct compute_instance_info *info);
status_t nvmlComputeInstanceGetInfo_v2(instance_t compute, struct compute_instance_info *info)
{
    MIG_BEGIN(find_instance, compute)
        result = at.compute ? SUCCESS : INVALID_ARGUMENT;
        if (result == SUCCESS)
            *info = (struct compute_instance_info){mig_device(at),
                                                   instance_handle(compute->device, at.instance->id, ANY),
                                                   at.compute->id, at.compute->profile,
                                                   {at.compute->start, compute_slices(at.compute->profile)}};
    MIG_END
}

/* MIG devices. */

status_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count);
status_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    BEGIN(device)
        unsigned most = 7; /* of cards without profiles */
        for (unsigned i = 0; i < at.gpu->profile_count; i++)
            most = i && most > at.gpu->profiles[i].info.instances ? most : at.gpu->profiles[i].info.instances;
        *count = at.gpu->mig_mode ? most : 0;
    END
}

status_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *mig);
status_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *mig)
{
    BEGIN(device)
        result = index < at.gpu->mig_count ? SUCCESS : NOT_FOUND;
        if (result == SUCCESS)
            *mig = handle_of(at.gpu->migs[index].uuid);
    END
}

status_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *answer);
status_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *answer)
{
    BEGIN(device) *answer = at.mig != NULL;
    END
}

#define MIG(function, type, statement)                                                                                 \
    status_t function(device_t device, type *value);                                                                   \
    status_t function(device_t device, type *value)                                                                    \
    {                                                                                                                  \
        BEGIN(device)                                                                                                  \
            if (!at.mig)                                                                                               \
                result = INVALID_ARGUMENT;                                                                             \
            else {                                                                                                     \
                statement;                                                                                             \
            }                                                                                                          \
        END                                                                                                            \
    }

MIG(nvmlDeviceGetGpuInstanceId, unsigned, *value = at.mig->gpu_instance)
MIG(nvmlDeviceGetComputeInstanceId, unsigned, *value = at.mig->compute_instance)
MIG(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device_t, *value = handle_of(at.gpu->uuid))
MIG(nvmlDeviceGetAttributes_v2, struct attributes,
    *value = ((struct attributes){at.mig->multiprocessors, at.mig->copy_engines, at.mig->decoders, at.mig->encoders,
                                  at.mig->jpegs, at.mig->ofas, at.mig->gpu_slices, at.mig->compute_slices,
                                  at.mig->memory_mib}))
