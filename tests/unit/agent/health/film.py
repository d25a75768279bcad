"""The history of a GPU as a script, played on a monitor with the test's clock."""

from collections.abc import Sequence
from dataclasses import replace

from berth_agent.conditions import Finding
from berth_agent.health import checks
from berth_agent.health.faults import Fault, FaultEvent, faults_of, mark
from berth_agent.health.monitor import HealthMonitor
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia import rules
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec

NODE = "n"
QUIET = 300
ALL_READ = Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
READ_TIMED_OUT = Finding(type=names.INVENTORY_READ, ok=False, reason="ReadTimedOut")
SOME_UNREAD = Finding(type=names.INVENTORY_READ, ok=False, reason="CardsUnread")


def gpu(minor: int, *kinds: str) -> DeviceInfo:
    card = DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", health=True)
    return mark(card, [Fault(kind=kind, message=f"it is {kind}") for kind in kinds]) if kinds else card


def reading(*devices: DeviceInfo, findings: Sequence[Finding] = (ALL_READ,)) -> Reading:
    return Reading(spec=DeviceSpec(devices=list(devices)), findings=tuple(findings))


class Film:
    """GPU 0 of two, to which the script applies. GPU 1 stays healthy."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.boot = "boot-1"
        self.device_annotations: dict[str, str] = {}
        self.reading = reading(gpu(0), gpu(1))
        self.monitor = self._monitor(DeviceSpec())

    def play(self, story: str) -> None:
        """Play steps with semicolons between them: `xid 79; read; wait 300; reset; restart; reboot; forgive 0`."""
        for step in story.split(";"):
            verb, *rest = step.split()
            getattr(self, verb)(*rest)

    @property
    def shown(self) -> Reading:
        return self.monitor.apply_faults(NODE, self.reading, device_annotations=self.device_annotations)

    @property
    def faults(self) -> list[str]:
        """The faults of GPU 0 as they are published, the hardest first."""
        first, *others = self.shown.spec.devices
        assert all(other.health for other in others)
        return [fault.kind for fault in faults_of(first)]

    def xid(self, number: str, instance: str = str(rules.ANY_INSTANCE)) -> None:
        fault = rules.of_xid(int(number), checks.read(disabled="", enabled=""), gpu_instance=int(instance))
        assert fault is not None
        self.monitor.record_event(FaultEvent(node=NODE, card="GPU-0", faults=(fault,)))

    def dbe(self) -> None:
        fault = rules.of_double_bit(checks.read(disabled="", enabled=""))
        assert fault is not None
        self.monitor.record_event(FaultEvent(node=NODE, card="GPU-0", faults=(fault,)))

    def read(self, *kinds: str) -> None:
        """Read the cards once more: the driver reports these faults of GPU 0."""
        self.reading = reading(gpu(0, *kinds), gpu(1))
        self.monitor.observe({NODE: self.reading})

    def hang(self) -> None:
        """Read no card, because the driver hangs."""
        self.reading = reading(findings=[READ_TIMED_OUT])
        self.monitor.observe({NODE: self.reading})

    def reset(self) -> None:
        """Read the cards after GPU 0 was reset."""
        self.reading = replace(reading(gpu(0), gpu(1)), reset=frozenset({"GPU-0"}))
        self.monitor.observe({NODE: self.reading})

    def wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def restart(self) -> None:
        """Start another agent from what this one published."""
        self.monitor = self._monitor(self.shown.spec.model_copy(update={"boot_id": self.boot}))

    def reboot(self) -> None:
        before = self.shown.spec.model_copy(update={"boot_id": self.boot})
        self.boot = f"{self.boot}+1"
        self.monitor = self._monitor(before)

    def forgive(self, text: str) -> None:
        named = self.monitor.named(NODE, self.reading, text)
        if not named.problems:
            self.monitor.clear_faults(NODE, self.reading, named.devices)

    def cordon(self, text: str) -> None:
        self.device_annotations = {names.CORDONED_DEVICES: text}

    def uncordon(self) -> None:
        self.device_annotations = {}

    def _monitor(self, spec: DeviceSpec) -> HealthMonitor:
        monitor = HealthMonitor(boot_id=self.boot, quiet=QUIET, clock=lambda: self.now)
        monitor.restore(NODE, spec)
        return monitor
