"""Drive the NVML fixture: describe a machine, write it for the library to read, and change it.

        fixture = NvmlFixture(folder, gpus=[a100(0), a100(1)])
        fixture.write()                       # environment() shows how a program finds it
        fixture.lose(0)                       # each change is visible at the program's next call

The fake sysfs next to it shows the same cards as the kernel would. It has their place below PCIe switches and root
complexes, their NUMA nodes, and their binding to the driver.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.nvml import build, mig_profiles
from tests.nvml.mig_profiles import MigProfile

XID: Final = 8
"""nvmlEventTypeXidCriticalError."""
DOUBLE_BIT_ECC: Final = 2
"""nvmlEventTypeDoubleBitEccError."""
IDLE, SW_POWER_CAP, HW_THERMAL_SLOWDOWN = 0x1, 0x4, 0x40
"""NVML's bits of reasons why a card does not run at full clocks."""
WHOLE_CARD: Final = 0xFFFFFFFF
UNINITIALIZED: Final = 1
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
GPU_IS_LOST: Final = 15
UNKNOWN: Final = 999
MIB: Final = 1 << 20
COMPUTE_PROFILES: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""NVML's number of the compute instance that has all of a GPU instance, by compute slices."""
HOPPER: Final = 9
"""NVML's number of the architecture from which on MIG mode needs no reset, and is off after a boot."""

SINGLE, HOSTBRIDGE, NODE, SYSTEM = 10, 30, 40, 50
"""NVML's levels of a common ancestor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One NVLink of a card, and its remote end."""

    end: str
    """`gpu` or `switch`."""
    remote: str
    """PCI address of the remote end, as NVML writes it."""
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One MIG device."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int = 0
    gpu_slices: int = 1
    compute_slices: int = 1
    memory_mib: int = 9728
    multiprocessors: int = 14
    copy_engines: int = 1
    decoders: int = 0
    encoders: int = 0
    jpegs: int = 0
    ofas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeInstance:
    """A GPU instance that a program made, with the ids of its compute instances."""

    id: int
    profile: int
    start: int
    computes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process on a card."""

    pid: int
    used: int
    gpu_instance: int = WHOLE_CARD
    compute_instance: int = WHOLE_CARD


@dataclass(slots=True, kw_only=True)
class Gpu:
    """One card. Numbers have NVML's units: bytes, milliwatts, degrees Celsius, percent, MHz, bits."""

    uuid: str
    name: str
    minor: int
    bus_id: str
    """As NVML writes it: `00000000:3B:00.0`."""
    memory: int
    numa: int = 0
    module: int = 0
    serial: str = "1320220000000"
    reserved: int = 0
    used: int = 0
    gpu_utilization: int = 0
    memory_utilization: int = 0
    encoder_utilization: int = 0
    decoder_utilization: int = 0
    bus_width: int = 5120
    sm_clock: int = 210
    max_sm_clock: int = 1410
    memory_clock: int = 1593
    max_memory_clock: int = 1593
    throttle_reasons: int = IDLE
    """NVML's bits of nvmlDeviceGetCurrentClocksEventReasons."""
    supported_reasons: int = 0x1FF
    power: int = 60_000
    power_limit: int = 400_000
    temperature: int = 34
    brand: int = 2
    architecture: int = 7
    major_capability: int = 8
    minor_capability: int = 0
    cores: int = 6912
    lost: bool = False
    virtualization: int = 0
    """nvmlGpuVirtualizationMode_t: 0 is none, 1 a card passed through to a virtual machine, 2 a vGPU."""
    event_types: int = 0x1F
    mig_capable: bool = False
    mig_mode: bool = False
    mig_pending: bool = False
    mig_idle: bool = False
    """Whether no other program has the card open, so that the driver can reset it to change the mode."""
    profiles: Sequence[MigProfile] = ()
    """GPU instances that can be made. Mode, minor and instances of such a card are in a file of the library's own."""
    ecc_mode: bool = True
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    retired_pages: int = 0
    retired_pending: bool = False
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    remapped_pending: bool = False
    remapped_failure: bool = False
    recovery_action: int = 0
    """nvmlDeviceGpuRecoveryAction_t: 0 is none, 1 a reset, 2 a reboot."""
    pci_class: str = "0x030200"
    sysfs: str = ""
    """Path below /sys/devices, `pci0000:3a/0000:3a:00.0/0000:3b:00.0`; it ends with the card's address."""
    links: list[NvLink] = field(default_factory=list)
    migs: list[MigDevice] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    """Functions that fail for this card, with their error codes."""
    topology: dict[str, int] = field(default_factory=dict)
    """Common ancestor with the cards of these UUIDs; for others it follows from `sysfs` and `numa`."""
    p2p: dict[str, int] = field(default_factory=dict)
    """P2P status with the cards of these UUIDs; 0 (OK) with the others."""

    @property
    def address(self) -> str:
        """Return the PCI address as the kernel writes it."""
        return self.bus_id[4:].lower()


LISTS: Final = {"profiles", "links", "migs", "processes", "fails", "topology", "p2p", "sysfs", "pci_class", "numa"}
"""Fields of a card that are not one line `name value` of the state file."""


REMAPS: Final = {"nvmlDeviceGetRetiredPages": NOT_SUPPORTED, "nvmlDeviceGetRetiredPagesPendingStatus": NOT_SUPPORTED}
"""Functions that fail on cards that remap rows of memory, from the A100 on; older cards retire pages."""


def a100(index: int = 0, *, switch: bool = True) -> Gpu:
    """Return an A100 of an eight-card machine: twelve NVLinks into NVSwitch, two cards on each PCIe switch."""
    root = 0x10 * (1 + index // 2)
    bus = root + 3 + index % 2
    card = Gpu(
        uuid=f"GPU-a1000000-0000-4000-8000-{index:012d}",
        name="NVIDIA A100-SXM4-80GB",
        minor=index,
        bus_id=f"00000000:{bus:02X}:00.0",
        memory=81920 * MIB,
        reserved=675 * MIB,
        numa=index // 4,
        module=index + 1,
        mig_capable=True,
        fails=dict(REMAPS),
        links=[NvLink(end="switch", remote=f"00000000:{0xC0 + link % 6:02X}:00.0") for link in range(12)],
    )
    card.sysfs = _below_switch(root, bus=bus, card=card) if switch else _below_root(root, bus=bus, card=card)
    return card


def rack(count: int) -> list[Gpu]:
    """Return this many A100s: eight-card machines, each in a PCI domain of its own."""
    return [_in_domain(a100(index % 8), domain=index // 8, index=index) for index in range(count)]


def _in_domain(card: Gpu, *, domain: int, index: int) -> Gpu:
    return replace(
        card,
        uuid=f"GPU-a1000000-0000-4000-8000-{index:012d}",
        minor=index,
        bus_id=f"{domain:08X}{card.bus_id[8:]}",
        sysfs=card.sysfs.replace("0000:", f"{domain:04x}:"),
    )


def h100(index: int = 0) -> Gpu:
    """Return an H100 of an eight-card machine: eighteen NVLinks into NVSwitch."""
    return replace(
        a100(index),
        uuid=f"GPU-b1000000-0000-4000-8000-{index:012d}",
        name="NVIDIA H100 80GB HBM3",
        memory=81559 * MIB,
        reserved=551 * MIB,
        power_limit=700_000,
        architecture=9,
        major_capability=9,
        cores=16896,
        max_sm_clock=1980,
        memory_clock=2619,
        max_memory_clock=2619,
        links=[NvLink(end="switch", remote=f"00000000:{0xC0 + link % 4:02X}:00.0") for link in range(18)],
    )


def with_profiles(card: Gpu, profiles: Sequence[MigProfile]) -> Gpu:
    """Return a card on which programs can make MIG instances."""
    return replace(card, profiles=profiles, mig_capable=True, fails=dict(card.fails))


def a100_40(index: int = 0) -> Gpu:
    """Return an A100 with 40 GB, with MIG management."""
    card = replace(a100(index), name="NVIDIA A100-SXM4-40GB", memory=40960 * MIB)
    return with_profiles(card, mig_profiles.A100_40)


def a30(index: int = 0) -> Gpu:
    """Return an A30, with MIG management."""
    card = replace(
        a100(index),
        uuid=f"GPU-a3000000-0000-4000-8000-{index:012d}",
        name="NVIDIA A30",
        memory=24576 * MIB,
        cores=3584,
        power_limit=165_000,
        links=[],
    )
    return with_profiles(card, mig_profiles.A30)


def t4(index: int = 0) -> Gpu:
    """Return a T4 at a root complex of its own."""
    root = 0x80 + 0x10 * index
    card = Gpu(
        uuid=f"GPU-74000000-0000-4000-8000-{index:012d}",
        name="Tesla T4",
        minor=index,
        bus_id=f"00000000:{root + 1:02X}:00.0",
        memory=15360 * MIB,
        reserved=449 * MIB,
        numa=1,
        power_limit=70_000,
        architecture=6,
        major_capability=7,
        minor_capability=5,
        cores=2560,
        bus_width=256,
        max_sm_clock=1590,
        memory_clock=405,
        max_memory_clock=5001,
        fails={"nvmlDeviceGetModuleId": NOT_SUPPORTED, "nvmlDeviceGetRemappedRows": NOT_SUPPORTED},
    )
    card.sysfs = _below_root(root, bus=root + 1, card=card)
    return card


def _below_root(root: int, *, bus: int, card: Gpu) -> str:
    return f"pci0000:{root:02x}/0000:{root:02x}:{bus - root:02x}.0/{card.address}"


def _below_switch(root: int, *, bus: int, card: Gpu) -> str:
    upstream, downstream = f"0000:{root + 1:02x}:00.0", f"0000:{root + 2:02x}:{4 * (bus - root - 3):02x}.0"
    return f"pci0000:{root:02x}/0000:{root:02x}:01.0/{upstream}/{downstream}/{card.address}"


@dataclass(slots=True)
class NvmlFixture:
    """A machine in a folder: its state file and its sysfs. Call `write` after changing fields by hand."""

    folder: Path
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = "570.133.20"
    cuda: int = 12080
    loaded: bool = True
    wait_error: int = 0
    """The error code with which waiting for events fails."""
    event_poll_ms: int = 20
    """Interval in milliseconds at which the library polls for events, which a driver would signal."""
    event_wait_ms: int = 0
    """Milliseconds that one wait for events takes at most; 0 for as many as the caller says."""
    mig_renumbers: bool = False
    """Whether a card gets another minor when its MIG mode changes."""
    events: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        """Return the path of the file that the library reads."""
        return self.folder / "nvml.state"

    @property
    def sysfs(self) -> Path:
        """Return the root of the fake sysfs."""
        return self.folder / "sys"

    @property
    def library(self) -> Path:
        """Return the library, built when needed."""
        return build.library()

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which any program uses the fixture as its NVML."""
        return {"BERTH_NVML_STATE": str(self.state), "LD_LIBRARY_PATH": str(self.library.parent)}

    def agent_options(self) -> list[str]:
        """Return the options that point `berth-agent` at the fixture; it also needs BERTH_NVML_STATE."""
        return ["--nvml-library", str(self.library), "--sysfs-root", str(self.sysfs)]

    def write(self) -> None:
        """Write the machine: sysfs, then the state file, each atomically."""
        self._write_sysfs()
        temporary = self.state.with_suffix(".new")
        # A card may report bytes that are no text: lone surrogates stand for them.
        temporary.write_text("".join(f"{line}\n" for line in self._lines()), errors="surrogateescape")
        temporary.replace(self.state)

    def lose(self, index: int) -> None:
        """Make a card fall off the bus."""
        self.gpus[index].lost = True
        self.write()

    def restore(self, index: int) -> None:
        """Return a lost card to the bus."""
        self.gpus[index].lost = False
        self.write()

    def remove(self, index: int) -> Gpu:
        """Remove a card from the machine."""
        gpu = self.gpus.pop(index)
        self.write()
        return gpu

    def add(self, gpu: Gpu) -> None:
        """Add a card to the machine."""
        self.gpus.append(gpu)
        self.write()

    def unload(self) -> None:
        """Unload the driver."""
        self.loaded = False
        self.write()

    def load(self) -> None:
        """Load the driver."""
        self.loaded = True
        self.write()

    def fail(self, index: int, function: str, code: int = UNKNOWN) -> None:
        """Make one NVML function fail for one card."""
        self.gpus[index].fails[function] = code
        self.write()

    def xid(
        self, index: int, number: int, *, gpu_instance: int = WHOLE_CARD, compute_instance: int = WHOLE_CARD
    ) -> None:
        """Report a critical error of a card to all programs that wait for events."""
        self._happen(index, kind=XID, data=number, where=f"{gpu_instance} {compute_instance}")

    def double_bit_error(self, index: int) -> None:
        """Report an ECC error that could not be corrected."""
        self._happen(index, kind=DOUBLE_BIT_ECC, data=0, where=f"{WHOLE_CARD} {WHOLE_CARD}")

    def unbind(self, index: int) -> None:
        """Unbind a card from the driver, until the next `write`."""
        (self.sysfs / "bus/pci/drivers/nvidia" / self.gpus[index].address).unlink()

    def rebind(self, index: int) -> None:
        """Unbind a card from the driver and bind it again at once."""
        bound = self.sysfs / "bus/pci/drivers/nvidia" / self.gpus[index].address
        fresh = self.folder / "binding"
        fresh.symlink_to(bound.readlink())
        fresh.replace(bound)

    def gpu_instances(self, index: int) -> list[MadeInstance]:
        """Return the GPU instances of a card, as the driver has them."""
        lines = [line.split() for line in self._instance_lines()]
        own = [line for line in lines if line[1] == self.gpus[index].uuid]
        return [
            MadeInstance(
                id=int(line[2]),
                profile=int(line[3]),
                start=int(line[4]),
                computes=tuple(int(part[3]) for part in own if part[0] == "compute" and part[2] == line[2]),
            )
            for line in own
            if line[0] == "instance"
        ]

    def mig_enabled(self, index: int) -> bool:
        """Return whether a card is in MIG mode, as the driver has it."""
        modes = [line.split() for line in self._instance_lines() if line.startswith("mode ")]
        own = [mode == "1" for _, uuid, mode, _ in modes if uuid == self.gpus[index].uuid]
        return own[-1] if own else self.gpus[index].mig_mode

    def add_instance(self, index: int, profile: MigProfile, start: int, *, complete: bool = True) -> None:
        """Have another program make a GPU instance, whatever is there, with a compute instance if it is complete."""
        gpu = self.gpus[index]
        number = max(one.size for one in gpu.profiles) // profile.size - 1 + start // profile.size
        with self._locked_instances():
            lines = [line.split() for line in self._instance_lines()]
            lines = [line for line in lines if line[:2] != ["mode", gpu.uuid]] + [["mode", gpu.uuid, "1", "1"]]
            lines.append(["instance", gpu.uuid, f"{number}", f"{profile.id}", f"{start}"])
            if complete:
                lines.append(["compute", gpu.uuid, f"{number}", "0", f"{COMPUTE_PROFILES[profile.slices]}", "0"])
            self._write_instances(lines)

    def remove_instances(self, index: int) -> None:
        """Have another program destroy all GPU instances of a card."""
        with self._locked_instances():
            lines = [line.split() for line in self._instance_lines()]
            kinds = ("instance", "compute")
            self._write_instances([line for line in lines if line[1] != self.gpus[index].uuid or line[0] not in kinds])

    def reset(self, index: int) -> None:
        """Reset a card: a pending MIG mode is the mode, and instances are gone."""
        self._restart([index], minors={}, forget_modes=False)

    def reboot(self, minors: Sequence[int] = ()) -> None:
        """Boot the machine again, with other minors if given. From Hopper on the MIG mode is off then."""
        self._restart(range(len(self.gpus)), minors=dict(enumerate(minors)), forget_modes=True)

    def _restart(self, indices: Sequence[int], *, minors: dict[int, int], forget_modes: bool) -> None:
        with self._locked_instances():
            lines = [line.split() for line in self._instance_lines()]
            modes = {line[1]: line[3] for line in lines if line[0] == "mode"}
            for index in indices:
                gpu = self.gpus[index]
                mode = modes.get(gpu.uuid, f"{gpu.mig_pending:d}")
                if forget_modes and gpu.architecture >= HOPPER:
                    mode = "0"
                lines = [line for line in lines if line[1] != gpu.uuid or (line[0] == "minor" and index not in minors)]
                lines.append(["mode", gpu.uuid, mode, mode])
                if index in minors:
                    lines.append(["minor", gpu.uuid, str(minors[index])])
            self._write_instances(lines)

    @property
    def instances(self) -> Path:
        """Return the file of modes, minors and instances, which the library writes."""
        return self.state.with_name(self.state.name + ".mig")

    def _write_instances(self, lines: Sequence[Sequence[str]]) -> None:
        temporary = self.instances.with_suffix(".draft")
        temporary.write_text("".join(" ".join(line) + "\n" for line in lines))
        temporary.replace(self.instances)

    def _instance_lines(self) -> list[str]:
        return self.instances.read_text().splitlines() if self.instances.exists() else []

    @contextmanager
    def _locked_instances(self) -> Iterator[None]:
        with self.state.with_name(self.state.name + ".mig.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _happen(self, index: int, *, kind: int, data: int, where: str) -> None:
        self.events.append(f"{len(self.events) + 1} {self.gpus[index].uuid} {kind} {data} {where}")
        self.write()

    def _lines(self) -> list[str]:
        head = [
            f"loaded {self.loaded:d}",
            f"cuda {self.cuda}",
            f"driver {self.driver}",
            f"wait_error {self.wait_error}",
            f"event_poll_ms {self.event_poll_ms}",
            f"event_wait_ms {self.event_wait_ms}",
            f"mig_renumbers {self.mig_renumbers:d}",
        ]
        cards = [line for gpu in self.gpus for line in self._gpu_lines(gpu)]
        return [*head, *cards, *(f"event {event}" for event in self.events)]

    def _gpu_lines(self, gpu: Gpu) -> list[str]:
        facts = {name: getattr(gpu, name) for name in Gpu.__dataclass_fields__ if name not in LISTS}
        return [
            "gpu",
            *(f"{name} {value:d}" if isinstance(value, int) else f"{name} {value}" for name, value in facts.items()),
            *(f"link {at} {link.active:d} {link.end} {link.remote}" for at, link in enumerate(gpu.links)),
            *(_mig_line(mig) for mig in gpu.migs),
            *(f"profile {profile.line()}" for profile in gpu.profiles),
            *(f"process {p.pid} {p.used} {p.gpu_instance} {p.compute_instance}" for p in gpu.processes),
            *(f"fail {function} {code}" for function, code in gpu.fails.items()),
            *(f"topology {at} {common_ancestor(gpu, other)}" for at, other in enumerate(self.gpus)),
            *(f"p2p {at} {gpu.p2p.get(other.uuid, 0)}" for at, other in enumerate(self.gpus)),
        ]

    def _write_sysfs(self) -> None:
        """Build the tree again for the current cards; a lost card stays on its bus as far as the kernel reports."""
        fresh = self.folder / f"sys.{len(list(self.folder.glob('sys.*')))}"
        fresh.mkdir(parents=True)
        for gpu in self.gpus:
            device = fresh / "devices" / gpu.sysfs
            device.mkdir(parents=True)
            (device / "numa_node").write_text(f"{gpu.numa}\n")
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text(f"{gpu.pci_class}\n")
            (device / "local_cpulist").write_text(f"{32 * max(gpu.numa, 0)}-{32 * max(gpu.numa, 0) + 31}\n")
            _link(fresh / "bus/pci/devices" / gpu.address, device)
            bound, binding = (root / "bus/pci/drivers/nvidia" / gpu.address for root in (self.sysfs, fresh))
            _link(binding, device)
            if bound.is_symlink() and bound.readlink() == binding.readlink():
                # The kernel keeps the link as long as the card is bound.
                binding.unlink()
                os.link(bound, binding, follow_symlinks=False)
            package = fresh / f"devices/system/cpu/cpu{32 * max(gpu.numa, 0)}/topology/physical_package_id"
            package.parent.mkdir(parents=True, exist_ok=True)
            package.write_text(f"{max(gpu.numa, 0)}\n")
        link = self.folder / "link"
        link.symlink_to(fresh.name)
        link.replace(self.sysfs)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _mig_line(mig: MigDevice) -> str:
    slices = mig.gpu_instance, mig.compute_instance, mig.gpu_slices, mig.compute_slices, mig.memory_mib
    parts = mig.multiprocessors, mig.copy_engines, mig.decoders, mig.encoders, mig.jpegs, mig.ofas
    return f"mig {mig.uuid} {mig.profile} {' '.join(map(str, (*slices, *parts)))}"


def mig_uuid(card: str, gpu_instance: int, compute_instance: int) -> str:
    """Return the UUID that the library gives to a compute instance."""
    number = 14695981039346656037 + 8 * gpu_instance + compute_instance
    for letter in card.encode():
        number = (number ^ letter) * 1099511628211 % (1 << 64)
    start = f"{number >> 32:08x}-{number >> 16 & 0xFFFF:04x}-5{gpu_instance & 0xFFF:03x}"
    return f"MIG-{start}-8{compute_instance & 0xFFF:03x}-{number * 31 & 0xFFFFFFFFFFFF:012x}"


def common_ancestor(one: Gpu, other: Gpu) -> int:
    """Return the level at which the PCIe paths of two cards meet."""
    if other.uuid in one.topology:
        return one.topology[other.uuid]
    here, there = one.sysfs.split("/"), other.sysfs.split("/")
    if len(here) > 3 and here[:3] == there[:3]:
        return SINGLE
    if here[0] == there[0]:
        return HOSTBRIDGE
    return NODE if one.numa == other.numa else SYSTEM
