"""The driver next to kubelet's device API: whatever breaks or happens at once, no card is given in both ways."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.dra.checkpoint import NAME
from berth_agent.dra.driver import ClaimDriver
from berth_agent.dra.endpoint import DriverEndpoint
from berth_agent.dra.forgotten import FORGOTTEN_SECONDS, INTERVAL
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError, NoPreference
from berth_agent.kubelet.device_plugin.gpus import GpuHandler
from berth_agent.readings import ClaimedByContainer, Process, Reading
from berth_agent.usage import processes
from berth_agent.vendor import RefusedError
from berth_agent.vendors.nvidia.hand_over.access import NvidiaAccess
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_api.allocation import visible
from berth_api.device import ClaimedDevice, DeviceSpec
from tests.objects.devices import spec
from tests.unit.agent.dra.test_preparation import BY_CDI, Node, machine

pytestmark = pytest.mark.looptime


class Pods(NoPreference):
    """What pods have by name; `meanwhile` runs during each admission."""

    def __init__(self) -> None:
        self.held: frozenset[str] | None = frozenset()
        self.is_current = True
        self.meanwhile: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)

    async def admit(self, resource: str, ids: Sequence[str]) -> None:  # noqa: ARG002
        await self.meanwhile()
        # As the agent knows them: by the card or instance, not by the replica.
        self.held = (self.held or frozenset()).union(map(visible, ids))
        await self.meanwhile()


class Cards:
    """How containers get the cards of `machine`."""

    def __init__(self) -> None:
        nodes = DeviceNodes(control=("/dev/nvidiactl",), capabilities={(2, 0, -1): 3, (2, 0, 0): 4})
        self.context = NvidiaAccess(spec=machine(), options=BY_CDI, nodes=nodes)

    def access(self, _spec: object) -> NvidiaAccess:
        return self.context


def start(
    folder: Path,
    pods: Pods,
    foreign: Callable[[Reading], frozenset[int]] = lambda _: frozenset(),
    *,
    lingering: Callable[[], frozenset[str]] = frozenset,
    has_shares: bool = True,
    has_partitions: bool = True,
    **options: Any,
) -> tuple[ClaimDriver, Node, GpuHandler]:
    """Return a driver that has not seen the cards yet, its API server, and the device plugin of the node."""
    node = Node(folder)
    settings = Settings(node_name="node", checkpoint=folder / "state/pods.json", cdi_folder=folder / "cdi", **options)
    api: Any = node
    hand_over: Any = Cards()
    driver = ClaimDriver(
        settings,
        client=api,
        hand_over=hand_over,
        endpoint=DriverEndpoint(folder),
        owner=dict,
        held=lambda: pods.held,
        is_current=lambda: pods.is_current,
        foreign=foreign,
        lingering=lingering,
        has_shares=has_shares,
        has_partitions=has_partitions,
    )
    plugin = GpuHandler(context=hand_over.context, chooser=pods, refuse_claimed=driver.refuse_claimed)
    return driver, node, plugin


def prepared(driver: ClaimDriver) -> float | None:
    """Return how many claims are prepared, by the metrics."""
    samples = [sample for family in driver.metrics.collect() for sample in family.samples]
    return next((sample.value for sample in samples if sample.name == "berth_claims_prepared"), None)


@pytest.mark.parametrize(
    ("label", "held", "is_current", "expected"),
    [
        pytest.param("claims", {"GPU-0"}, True, {"GPU-1", "GPU-2"}, id="by claims"),
        pytest.param("claims", {"GPU-0"}, False, {"GPU-1", "GPU-2"}, id="kubelet restarts"),
        pytest.param("claims", None, False, {"GPU-1"}, id="pods never known"),
        pytest.param("name", {"GPU-0"}, True, {"GPU-1"}, id="by name"),
    ],
)
async def test_kubelet_is_offered_what_pods_held_last(
    tmp_path: Path, label: str, held: set[str] | None, is_current: bool, expected: set[str]
) -> None:
    pods = Pods()
    driver, node, _ = start(tmp_path, pods)
    labels = {"berth.dev/cards": label}
    await driver.update(Reading(spec=machine(), findings=()), labels)
    await driver.claims.prepare(node.allocate("one", "gpu-1"))
    pods.held, pods.is_current = None if held is None else frozenset(held), is_current
    await driver.update(Reading(spec=machine(), findings=()), labels)
    assert driver.withheld() == expected
    if not is_current:
        # A claim gets nothing until kubelet says what pods have now.
        with pytest.raises(RefusedError, match="not known yet"):
            await driver.claims.prepare(node.allocate("two", "gpu-2"))


async def test_a_gpu_driver_that_does_not_answer_keeps_no_container_from_its_start(tmp_path: Path) -> None:
    driver, node, _ = start(tmp_path, Pods())
    await driver.update(Reading(spec=machine(), findings=()), {})
    await driver.claims.prepare(node.allocate("one", "gpu-1"))
    nothing = Reading(spec=DeviceSpec(devices=[]), findings=())
    unanswered = replace(nothing, findings=(Finding(type="DriverLoaded", ok=False, reason="NoDriver"),))
    for reading, expected in ((unanswered, ""), (nothing, "DeviceGone"), (unanswered, "DeviceGone")):
        await driver.update(reading, {})
        if driver.claims.renewing:
            await driver.claims.renewing
        [served] = driver.view(nothing).findings
        assert served.reason == (expected or "NotRegistered")
        assert [name.endswith(".json") for name in node.files()] == [not expected]


async def test_while_the_record_cannot_be_read_only_pods_keep_their_cards(tmp_path: Path) -> None:
    before, node, _ = start(tmp_path, Pods())
    await before.update(Reading(spec=machine(), findings=()), {})
    await before.claims.prepare(node.allocate("one", "gpu-0"))
    record = tmp_path / "state" / NAME
    record.rename(tmp_path / "good")
    record.symlink_to(tmp_path / "good")
    pods = Pods()
    pods.held = frozenset({"GPU-1"})
    driver, node, plugin = start(tmp_path, pods)
    await driver.update(Reading(spec=machine(), findings=()), {})
    assert driver.withheld() == {"GPU-0", "GPU-2"}
    await plugin.allocate("nvidia.com/gpu", ["GPU-1"])
    with pytest.raises(AllocationRefusedError, match="GPU-2"):
        await plugin.allocate("nvidia.com/gpu", ["GPU-2"])
    key = node.allocate("two", "mig-2-0")
    [served] = driver.view(Reading(spec=machine(), findings=())).findings
    assert (served.ok, served.reason) == (False, "CheckpointUnreadable")
    assert prepared(driver) is None
    for call in (driver.claims.prepare, driver.claims.unprepare):
        with pytest.raises(RefusedError, match="the checkpoint of claims cannot be read"):
            await call(key)
    record.unlink()
    (tmp_path / "good").rename(record)
    await driver.update(Reading(spec=machine(), findings=()), {})
    assert driver.withheld() == {"GPU-0"}
    await driver.claims.prepare(key)
    assert driver.withheld() == {"GPU-0", "GPU-2"}
    await driver.update(Reading(spec=machine(), findings=()), {})
    [served] = driver.view(Reading(spec=machine(), findings=())).findings
    assert (served.reason, prepared(driver)) == ("NotRegistered", 2)


async def test_kubelet_does_not_allocate_what_a_claim_holds(tmp_path: Path) -> None:
    driver, node, plugin = start(tmp_path, Pods())
    await driver.update(Reading(spec=machine(), findings=()), {})
    await driver.claims.prepare(node.allocate("one", "gpu-0", "mig-2-0"))
    for unit in ("GPU-0", "GPU-0::1", "MIG-2-1"):
        with pytest.raises(AllocationRefusedError, match=f"{unit}: its card is prepared for a ResourceClaim"):
            await plugin.allocate("nvidia.com/gpu", [unit])
    await plugin.allocate("nvidia.com/gpu", ["GPU-1"])


async def test_a_card_that_a_process_outside_pods_uses_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, cgroup in ((7, "0::/system.slice/trainer.service"), (8, f"0::/kubepods/pod{'a' * 32}/b")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(cgroup)

    def foreign(reading: Reading) -> frozenset[int]:
        return frozenset(use.minor for use in processes.foreign(reading.processes or {}, proc))

    driver, node, _ = start(tmp_path, Pods(), foreign=foreign)
    on_cards = {0: (Process(pid=7),), 1: (Process(pid=8),)}
    await driver.update(Reading(spec=machine(), findings=(), processes=on_cards), {})
    key = node.allocate("one", "gpu-0")
    await driver.claims.prepare(node.allocate("other", "gpu-1"))
    with pytest.raises(RefusedError, match="a process outside pods uses gpu-0"):
        await driver.claims.prepare(key)
    assert driver.withheld() == {"GPU-1"}
    # It ends while kubelet waits, and the next reading is far away.
    waiting = asyncio.create_task(driver.claims.prepare(key))
    await asyncio.sleep(5)
    assert not waiting.done()
    (proc / "7" / "cgroup").unlink()
    await waiting
    # A process that comes later keeps no container of the claim from its start.
    (proc / "7" / "cgroup").write_text("0::/system.slice/trainer.service")
    await driver.claims.prepare(key)


@pytest.mark.parametrize("lag", range(6))
async def test_a_card_that_a_claim_and_a_pod_request_at_once_is_given_once(tmp_path: Path, lag: int) -> None:
    pods = Pods()
    driver, node, plugin = start(tmp_path, pods)
    await driver.update(Reading(spec=machine(), findings=()), {})
    key = node.allocate("one", "gpu-0")
    admitting = asyncio.Event()

    async def meanwhile() -> None:
        admitting.set()
        for _ in range(lag):
            await asyncio.sleep(0)

    async def prepare() -> None:
        await admitting.wait()
        await driver.claims.prepare(key)

    pods.meanwhile = meanwhile
    answers = await asyncio.gather(plugin.allocate("nvidia.com/gpu", ["GPU-0"]), prepare(), return_exceptions=True)
    assert [isinstance(answer, RefusedError) for answer in answers].count(True) == 1


def sockets(folder: Path) -> list[Path]:
    return list(folder.rglob("*.sock"))


async def test_when_the_driver_is_turned_off_its_sockets_go_and_what_running_pods_need_stays() -> None:
    # The paths of sockets are short.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver, node, _ = start(folder, Pods())
        await driver.update(Reading(spec=machine(), findings=()), {})
        key = node.allocate("one", "gpu-0")
        endpoint = DriverEndpoint(folder)
        endpoint.begin(driver.claims)
        serving = asyncio.create_task(endpoint.run())
        await endpoint.prepare(key)
        while len(sockets(folder)) < 2:  # noqa: ASYNC110 - they have no event
            await asyncio.sleep(0.1)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await endpoint.close()
        files = node.files()
        assert sockets(folder) == []
        assert len(files) == 1
        # A driver that is turned on later ends the claim.
        later, _, _ = start(folder, Pods())
        assert later.claims.cards() == frozenset({"GPU-0"})
        assert node.files() == files
        await later.claims.unprepare(key)
        assert node.files() == {}


def user(claim: str, device: str, *, container: str = "main", driver: str = "gpu.berth.dev") -> ClaimedByContainer:
    claimed = ClaimedDevice(namespace="ns", claim=claim, driver=driver, pool="node", device=device)
    return ClaimedByContainer(pod=f"pod-{claim}", container=container, device=claimed)


async def test_what_containers_have_of_cards_by_claim(tmp_path: Path) -> None:
    driver, node, _ = start(tmp_path, Pods())
    await driver.update(Reading(spec=machine(), findings=()), {"berth.dev/cards": "claims"})
    await driver.claims.prepare(node.allocate("whole", "gpu-0"))
    await driver.claims.prepare(node.allocate("part", "mig-2-1"))
    await driver.claims.prepare(node.allocate("monitor", "gpu-0", adminAccess=True))
    users = [
        user("whole", "gpu-0"),
        user("whole", "gpu-0", container="other"),
        user("whole", "gpu-0", driver="gpu.nvidia.com"),
        user("part", "mig-2-1"),
        user("monitor", "gpu-0"),
        user("gone", "gpu-1"),
    ]
    parts = driver.parts(users)
    shown = [(part.pod, part.container, part.card, part.instance.id if part.instance else "") for part in parts]
    assert shown == [
        ("pod-whole", "main", "GPU-0", ""),
        ("pod-whole", "other", "GPU-0", ""),
        ("pod-part", "main", "GPU-2", "MIG-2-1"),
    ]
    assert {(part.key, part.memory, part.cores) for part in parts} == {("whole/0", None, 0), ("part/0", None, 0)}
    # An instance that the last reading lacks is not taken for the whole card.
    await driver.update(Reading(spec=spec(3), findings=()), {"berth.dev/cards": "claims"})
    assert [part.pod for part in driver.parts(users)] == ["pod-whole", "pod-whole"]


async def test_what_a_container_has_of_a_shared_card(tmp_path: Path) -> None:
    driver, node, _ = start(tmp_path, Pods())
    await driver.update(Reading(spec=machine(), findings=()), {"berth.dev/cards": "shares"})
    consumed = {"memory": "20Gi", "cores": "25"}
    claim = node.allocate("share", "gpu-0", shareID="one", consumedCapacity=consumed)
    node.claims["share"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    node.pods.append(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "share"}],
                "containers": [{"name": "main", "resources": {"claims": [{"name": "c"}]}}],
            },
        }
    )
    await driver.claims.prepare(claim)
    [part] = driver.parts([user("share", "gpu-0")])
    assert (part.card, part.memory, part.cores) == ("GPU-0", 20 * 2**30, 25)


async def test_a_label_for_partitions_on_cards_of_a_vendor_without_them_is_refused(tmp_path: Path) -> None:
    driver, _, _ = start(tmp_path, Pods(), has_partitions=False)
    reading = Reading(spec=machine(), findings=())
    await driver.update(reading, {"berth.dev/cards": "claims", "berth.dev/partitions": "all"})
    [found] = driver.view(reading).findings
    assert "label berth.dev/partitions=all has no effect: partitions cannot be made on cards of this vendor" in (
        found.message
    )


async def test_an_unknown_value_of_the_label_is_reported(tmp_path: Path) -> None:
    driver, _, _ = start(tmp_path, Pods())
    reading = Reading(spec=machine(), findings=())
    await driver.update(reading, {"berth.dev/cards": "claim"})
    message = "label berth.dev/cards=claim has no effect: allowed are name, claims, shares, both; did you mean claims?"
    [found] = driver.view(reading).findings
    assert (found.type, found.ok) == ("ClaimsServed", False)
    assert message in found.message
    await driver.update(reading, {"berth.dev/cards": "name"})
    [found] = driver.view(reading).findings
    assert message not in found.message


async def test_a_claim_of_a_pod_that_was_deleted_by_force_keeps_its_card_while_a_process_runs(tmp_path: Path) -> None:
    lingering = frozenset({"pod-1"})
    driver, node, _ = start(tmp_path, Pods(), lingering=lambda: lingering)
    reading = Reading(spec=machine(), findings=())
    await driver.update(reading, {})
    await driver.claims.prepare(node.allocate("one", "gpu-0"))
    del node.claims["one"]
    looking = asyncio.create_task(driver._forgotten.run())
    await asyncio.sleep(FORGOTTEN_SECONDS + INTERVAL / 2)
    assert "ProcessesLeft" not in dict(driver._problems())
    await asyncio.sleep(INTERVAL)
    [served] = driver.view(reading).findings
    assert served.reason == "ProcessesLeft"
    assert served.message.startswith(
        "ResourceClaim ns/one may not be released: processes of pods that have gone still run, and may use the cards. "
        "End them, or reboot the node; the pods' UIDs: pod-1"
    )
    assert driver.withheld() == {"GPU-0"}
    lingering = frozenset()
    await asyncio.sleep(INTERVAL)
    assert ("ProcessesLeft" in dict(driver._problems()), driver.withheld()) == (False, frozenset())
    looking.cancel()
