/* A libnvidia-ml.so.1 without hardware: serves the machine of a state file to any program that uses NVML.
 *
 * A handle stands for a UUID, so it survives every change of the machine; a card that is gone or lost answers
 * GPU_IS_LOST through it, as a real one does that fell off the bus.
 */
#include "handles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_HANDLES = 1024, RECOVERY_ACTION = 230, UNSIGNED_INT = 1, MEMORY_CLOCK = 2, SAMPLED_US = 167000 };

struct handle {
    char uuid[TEXT];
};

struct event_set {
    u64 last;
    u64 types;
};

static struct handle handles[MAX_HANDLES];
static unsigned sessions;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct machine NO_MACHINE;

const struct machine *current(void)
{
    const struct machine *machine = machine_now();
    return machine ? machine : &NO_MACHINE;
}

status_t ready(void)
{
    if (!sessions)
        return UNINITIALIZED;
    return current()->loaded ? SUCCESS : DRIVER_NOT_LOADED;
}

device_t handle_of(const char *uuid)
{
    for (unsigned i = 0; i < MAX_HANDLES; i++) {
        if (!handles[i].uuid[0])
            snprintf(handles[i].uuid, TEXT, "%s", uuid);
        if (strcmp(handles[i].uuid, uuid) == 0)
            return &handles[i];
    }
    abort();
}

static status_t look_up(device_t handle, struct target *target)
{
    const struct machine *machine = current();
    for (unsigned i = 0; i < machine->gpu_count; i++) {
        const struct gpu *gpu = &machine->gpus[i];
        target->gpu = gpu;
        target->mig = NULL;
        if (strcmp(gpu->uuid, handle->uuid) == 0)
            return gpu->lost ? GPU_IS_LOST : SUCCESS;
        for (unsigned m = 0; m < gpu->mig_count; m++) {
            target->mig = &gpu->migs[m];
            if (strcmp(gpu->migs[m].uuid, handle->uuid) == 0)
                return gpu->lost ? GPU_IS_LOST : SUCCESS;
        }
    }
    return NOT_FOUND;
}

status_t failing(const struct gpu *gpu, const char *function)
{
    for (unsigned i = 0; i < gpu->fail_count; i++)
        if (strcmp(gpu->fails[i].function, function) == 0)
            return (status_t)gpu->fails[i].code;
    return SUCCESS;
}

status_t find(device_t handle, const char *function, struct target *target)
{
    if (ready() != SUCCESS)
        return ready();
    if (!handle)
        return INVALID_ARGUMENT;
    status_t found = look_up(handle, target);
    if (found == NOT_FOUND)
        return GPU_IS_LOST;
    return found == SUCCESS ? failing(target->gpu, function) : found;
}

static status_t copy(char *to, unsigned length, const char *text)
{
    return snprintf(to, length, "%s", text) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

/* Functions that hand out one number, or one text, of a card. */
#define NUMBER(function, type, member)                                                                                 \
    status_t function(device_t device, type *value);                                                                   \
    status_t function(device_t device, type *value)                                                                    \
    {                                                                                                                  \
        BEGIN(device) *value = (type)at.gpu->member;                                                                   \
        END                                                                                                            \
    }
#define STRING(function, text)                                                                                         \
    status_t function(device_t device, char *to, unsigned length);                                                     \
    status_t function(device_t device, char *to, unsigned length)                                                      \
    {                                                                                                                  \
        BEGIN(device) result = copy(to, length, text);                                                                 \
        END                                                                                                            \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned, minor)
NUMBER(nvmlDeviceGetModuleId, unsigned, module)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, power)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, power_limit)
NUMBER(nvmlDeviceGetBrand, unsigned, brand)
NUMBER(nvmlDeviceGetArchitecture, unsigned, architecture)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, cores)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, bus_width)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, throttle_reasons)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, u64, supported_reasons)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, retired_pending)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, virtualization)
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, event_types)
STRING(nvmlDeviceGetSerial, at.gpu->serial)
STRING(nvmlDeviceGetUUID, at.mig ? at.mig->uuid : at.gpu->uuid)

/* Library and system. */

status_t nvmlInitWithFlags(unsigned flags);
status_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    status_t result = current()->loaded ? SUCCESS : DRIVER_NOT_LOADED;
    sessions += result == SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

status_t nvmlInit_v2(void);
status_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

status_t nvmlShutdown(void);
status_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    status_t result = sessions ? SUCCESS : UNINITIALIZED; /* drivers up to 555 answer SUCCESS without a session, too */
    sessions -= sessions > 0;
    pthread_mutex_unlock(&lock);
    return result;
}

/* By code, as drivers from 550 on have them. */
const char *nvmlErrorString(status_t status);
const char *nvmlErrorString(status_t status)
{
    static const char *const TEXTS[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "vGPU ECC not supported",
        "Insufficient Resources",
        "Invalid Frequency",
        "Argument version mismatch",
        "Requested functionality has been deprecated",
        "System is not in ready state",
        "No supported GPUs were found",
        "Resource not in correct state to perform requested operation",
    };
    return (unsigned)status < sizeof TEXTS / sizeof TEXTS[0] ? TEXTS[status] : "Unknown Error";
}

#define SYSTEM(function, parameters, statement)                                                                        \
    status_t function parameters;                                                                                      \
    status_t function parameters                                                                                       \
    {                                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        status_t result = ready();                                                                                     \
        if (result == SUCCESS) {                                                                                       \
            statement;                                                                                                 \
        }                                                                                                              \
        pthread_mutex_unlock(&lock);                                                                                   \
        return result;                                                                                                 \
    }

SYSTEM(nvmlSystemGetDriverVersion, (char *to, unsigned length), result = copy(to, length, current()->driver))
SYSTEM(nvmlSystemGetCudaDriverVersion, (int *version), *version = (int)current()->cuda)
SYSTEM(nvmlSystemGetCudaDriverVersion_v2, (int *version), *version = (int)current()->cuda)
SYSTEM(nvmlDeviceGetCount_v2, (unsigned *count), *count = current()->gpu_count)

/* Versions of CUDA and of the driver are reported without a session. */
status_t nvmlSystemGetNVMLVersion(char *to, unsigned length);
status_t nvmlSystemGetNVMLVersion(char *to, unsigned length)
{
    char version[TEXT + 24];
    pthread_mutex_lock(&lock);
    snprintf(version, sizeof version, "%llu.%s", current()->cuda / 1000, current()->driver);
    pthread_mutex_unlock(&lock);
    return copy(to, length, version);
}

/* Handles of devices. */

static status_t hand_out(const struct gpu *gpu, device_t *device)
{
    if (!gpu)
        return NOT_FOUND;
    *device = handle_of(gpu->uuid);
    return gpu->lost ? GPU_IS_LOST : SUCCESS;
}

static const struct gpu *by_index(unsigned index)
{
    return index < current()->gpu_count ? &current()->gpus[index] : NULL;
}

static const struct gpu *by_pci(const char *bus_id)
{
    for (unsigned i = 0; i < current()->gpu_count; i++)
        if (strcasecmp(current()->gpus[i].bus_id, bus_id) == 0)
            return &current()->gpus[i];
    return NULL;
}

static status_t by_uuid(const char *uuid, device_t *device)
{
    struct target target;
    *device = handle_of(uuid);
    return look_up(*device, &target);
}

SYSTEM(nvmlDeviceGetHandleByIndex_v2, (unsigned index, device_t *device),
       result = by_index(index) ? hand_out(by_index(index), device) : INVALID_ARGUMENT)
SYSTEM(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, device_t *device),
       result = hand_out(by_pci(bus_id), device))
SYSTEM(nvmlDeviceGetHandleByUUID, (const char *uuid, device_t *device), result = by_uuid(uuid, device))

status_t nvmlDeviceGetIndex(device_t device, unsigned *index);
status_t nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    BEGIN(device) *index = (unsigned)(at.gpu - current()->gpus);
    END
}

/* Properties of a card. */

status_t nvmlDeviceGetName(device_t device, char *to, unsigned length);
status_t nvmlDeviceGetName(device_t device, char *to, unsigned length)
{
    char name[2 * TEXT + 8];
    BEGIN(device)
        snprintf(name, sizeof name, at.mig ? "%s MIG %s" : "%s", at.gpu->name, at.mig ? at.mig->profile : "");
        result = copy(to, length, name);
    END
}

status_t nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info);
status_t nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info)
{
    BEGIN(device)
        memset(info, 0, sizeof *info);
        snprintf(info->bus_id, sizeof info->bus_id, "%.31s", at.gpu->bus_id);
        snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%.15s", at.gpu->bus_id + 4);
        sscanf(at.gpu->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    END
}

status_t nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor);
status_t nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor)
{
    BEGIN(device)
        *major = (int)at.gpu->major_capability;
        *minor = (int)at.gpu->minor_capability;
    END
}

/* Of an instance, all memory that is used belongs to processes. */
static struct memory_v2 memory_of(struct target at)
{
    struct memory_v2 memory = {0, at.gpu->memory, at.gpu->reserved, 0, at.gpu->used};
    if (at.mig) {
        memory = (struct memory_v2){.total = at.mig->memory_mib << 20};
        for (unsigned i = 0; i < at.gpu->process_count; i++)
            if (at.gpu->processes[i].gpu_instance == at.mig->gpu_instance)
                memory.used += at.gpu->processes[i].used_memory;
    }
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

status_t nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory);
status_t nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory)
{
    BEGIN(device)
        struct memory_v2 all = memory_of(at);
        *memory = (struct memory){all.total, all.free, all.used + all.reserved};
    END
}

status_t nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory);
status_t nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory)
{
    BEGIN(device)
        unsigned version = memory->version;
        *memory = memory_of(at);
        memory->version = version;
    END
}

/* In MIG mode engines are not measured, neither of the card nor of an instance. */
static status_t measured(struct target at)
{
    return at.gpu->mig_mode ? NOT_SUPPORTED : SUCCESS;
}

status_t nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates);
status_t nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates)
{
    BEGIN(device)
        result = measured(at);
        *rates = (struct utilization){(unsigned)at.gpu->gpu_utilization, (unsigned)at.gpu->memory_utilization};
    END
}

status_t nvmlDeviceGetEncoderUtilization(device_t device, unsigned *percent, unsigned *period_us);
status_t nvmlDeviceGetEncoderUtilization(device_t device, unsigned *percent, unsigned *period_us)
{
    BEGIN(device)
        result = measured(at);
        *percent = (unsigned)at.gpu->encoder_utilization;
        *period_us = SAMPLED_US;
    END
}

status_t nvmlDeviceGetDecoderUtilization(device_t device, unsigned *percent, unsigned *period_us);
status_t nvmlDeviceGetDecoderUtilization(device_t device, unsigned *percent, unsigned *period_us)
{
    BEGIN(device)
        result = measured(at);
        *percent = (unsigned)at.gpu->decoder_utilization;
        *period_us = SAMPLED_US;
    END
}

status_t nvmlDeviceGetClockInfo(device_t device, unsigned domain, unsigned *mhz);
status_t nvmlDeviceGetClockInfo(device_t device, unsigned domain, unsigned *mhz)
{
    BEGIN(device) *mhz = (unsigned)(domain == MEMORY_CLOCK ? at.gpu->memory_clock : at.gpu->sm_clock);
    END
}

status_t nvmlDeviceGetMaxClockInfo(device_t device, unsigned domain, unsigned *mhz);
status_t nvmlDeviceGetMaxClockInfo(device_t device, unsigned domain, unsigned *mhz)
{
    BEGIN(device) *mhz = (unsigned)(domain == MEMORY_CLOCK ? at.gpu->max_memory_clock : at.gpu->max_sm_clock);
    END
}

status_t nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius);
status_t nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    BEGIN(device) *celsius = (unsigned)at.gpu->temperature;
    END
}

status_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process_info *processes);
status_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process_info *processes)
{
    BEGIN(device)
        unsigned room = *count;
        *count = at.gpu->process_count;
        if (room < *count)
            result = INSUFFICIENT_SIZE;
        else if (*count)
            memcpy(processes, at.gpu->processes, *count * sizeof *processes);
    END
}

/* Memory errors. */

status_t nvmlDeviceGetEccMode(device_t device, unsigned *now, unsigned *pending);
status_t nvmlDeviceGetEccMode(device_t device, unsigned *now, unsigned *pending)
{
    BEGIN(device) *now = *pending = (unsigned)at.gpu->ecc_mode;
    END
}

status_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned kind, unsigned since, u64 *count);
status_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned kind, unsigned since, u64 *count)
{
    (void)since;
    BEGIN(device)
        result = at.gpu->ecc_mode ? SUCCESS : NOT_SUPPORTED;
        *count = kind ? at.gpu->ecc_uncorrected : at.gpu->ecc_corrected;
    END
}

status_t nvmlDeviceGetRetiredPages(device_t device, unsigned cause, unsigned *count, u64 *addresses);
status_t nvmlDeviceGetRetiredPages(device_t device, unsigned cause, unsigned *count, u64 *addresses)
{
    BEGIN(device)
        unsigned room = *count;
        *count = cause ? (unsigned)at.gpu->retired_pages : 0; /* all of them by double bit errors */
        if (room < *count)
            result = INSUFFICIENT_SIZE;
        for (unsigned i = 0; result == SUCCESS && i < *count; i++)
            addresses[i] = (u64)i << 12;
    END
}

status_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                   unsigned *failure);
status_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                   unsigned *failure)
{
    BEGIN(device)
        *corrected = (unsigned)at.gpu->remapped_corrected;
        *uncorrected = (unsigned)at.gpu->remapped_uncorrected;
        *pending = (unsigned)at.gpu->remapped_pending;
        *failure = (unsigned)at.gpu->remapped_failure;
    END
}

/* Of all fields, only the recovery action is there. */
status_t nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values);
status_t nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values)
{
    BEGIN(device)
        for (int i = 0; i < count; i++) {
            values[i].value_type = UNSIGNED_INT;
            values[i].status = values[i].field == RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
            values[i].value.as_unsigned = (unsigned)at.gpu->recovery_action;
        }
    END
}

/* How cards reach each other. */

static const u64 *toward(const u64 *row, device_t other)
{
    struct target target;
    return look_up(other, &target) == SUCCESS ? &row[target.gpu - current()->gpus] : NULL;
}

status_t nvmlDeviceGetTopologyCommonAncestor(device_t device, device_t other, unsigned *level);
status_t nvmlDeviceGetTopologyCommonAncestor(device_t device, device_t other, unsigned *level)
{
    BEGIN(device)
        const u64 *found = toward(at.gpu->topology, other);
        result = found ? SUCCESS : GPU_IS_LOST;
        *level = found ? (unsigned)*found : 0;
    END
}

status_t nvmlDeviceGetP2PStatus(device_t device, device_t other, unsigned capability, unsigned *status);
status_t nvmlDeviceGetP2PStatus(device_t device, device_t other, unsigned capability, unsigned *status)
{
    (void)capability;
    BEGIN(device)
        const u64 *found = toward(at.gpu->p2p, other);
        result = found ? SUCCESS : GPU_IS_LOST;
        *status = found ? (unsigned)*found : 0;
    END
}

/* Real drivers call a missing link an invalid argument, and on a card without any NVLink not supported. */
static status_t link_status(const struct gpu *gpu, unsigned index)
{
    if (!gpu->links[0].present)
        return NOT_SUPPORTED;
    return index < MAX_LINKS && gpu->links[index].present ? SUCCESS : INVALID_ARGUMENT;
}

#define LINK(function, parameters, statement)                                                                          \
    status_t function parameters;                                                                                      \
    status_t function parameters                                                                                       \
    {                                                                                                                  \
        BEGIN(device)                                                                                                  \
            result = link_status(at.gpu, index);                                                                       \
            if (result == SUCCESS) {                                                                                   \
                const struct link *link = &at.gpu->links[index];                                                       \
                statement;                                                                                             \
            }                                                                                                          \
        END                                                                                                            \
    }

LINK(nvmlDeviceGetNvLinkState, (device_t device, unsigned index, unsigned *active), *active = (unsigned)link->active)
LINK(nvmlDeviceGetNvLinkVersion, (device_t device, unsigned index, unsigned *version),
     (void)link;
     *version = 3)
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, (device_t device, unsigned index, unsigned *type), *type = link->end)
LINK(nvmlDeviceGetNvLinkCapability, (device_t device, unsigned index, unsigned capability, unsigned *value),
     (void)link;
     *value = capability <= 5)
LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, (device_t device, unsigned index, struct pci_info *info),
     memset(info, 0, sizeof *info);
     snprintf(info->bus_id, sizeof info->bus_id, "%.31s", link->remote))

/* Events: a set delivers what the file gained since the set was made. */

static u64 newest_event(void)
{
    const struct machine *machine = current();
    return machine->event_count ? machine->events[machine->event_count - 1].sequence : 0;
}

static const struct event *next_event(const struct event_set *set)
{
    const struct machine *machine = current();
    for (unsigned i = 0; i < machine->event_count; i++)
        if (machine->events[i].sequence > set->last && machine->events[i].type & set->types)
            return &machine->events[i];
    return NULL;
}

SYSTEM(nvmlEventSetCreate, (struct event_set **set), *set = calloc(1, sizeof **set); (*set)->last = newest_event())

status_t nvmlEventSetFree(struct event_set *set);
status_t nvmlEventSetFree(struct event_set *set)
{
    pthread_mutex_lock(&lock);
    status_t result = sessions ? SUCCESS : UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    free(set);
    return result;
}

status_t nvmlDeviceRegisterEvents(device_t device, u64 types, struct event_set *set);
status_t nvmlDeviceRegisterEvents(device_t device, u64 types, struct event_set *set)
{
    BEGIN(device) set->types |= types;
    END
}

static unsigned wait_limit(unsigned timeout_ms)
{
    pthread_mutex_lock(&lock);
    u64 limit = current()->event_wait_ms;
    pthread_mutex_unlock(&lock);
    return limit && limit < timeout_ms ? (unsigned)limit : timeout_ms;
}

static status_t take_event(struct event_set *set, struct event_data *data, unsigned *pause_ms)
{
    pthread_mutex_lock(&lock);
    const struct event *event = next_event(set);
    *pause_ms = current()->event_poll_ms ? (unsigned)current()->event_poll_ms : 1;
    status_t result = ready() == SUCCESS ? TIMEOUT : ready();
    if (result == TIMEOUT && current()->wait_error)
        result = (status_t)current()->wait_error;
    if (result == TIMEOUT && event) {
        *data = (struct event_data){handle_of(event->uuid), event->type, event->data, event->gpu_instance,
                                    event->compute_instance};
        set->last = event->sequence;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

status_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms);
status_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    timeout_ms = wait_limit(timeout_ms);
    for (unsigned waited = 0, pause_ms = 0;; waited += pause_ms) {
        status_t result = take_event(set, data, &pause_ms);
        if (result != TIMEOUT || waited >= timeout_ms)
            return result;
        pause_ms = pause_ms < timeout_ms - waited ? pause_ms : timeout_ms - waited;
        nanosleep(&(struct timespec){.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000L}, NULL);
    }
}
