"""Claims on the node: whatever breaks, a repeated call ends with the same result, and no card has two owners."""

import asyncio
import contextlib
import gc
import json
import resource
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from berth_agent.dra import devices
from berth_agent.dra.checkpoint import NAME, AbsentError, ClaimCheckpoint, DamagedError, HeldClaim
from berth_agent.dra.preparation import REMEMBERED, WAIT, NodeState, Preparation
from berth_agent.dra.recovery import ENDED_SECONDS
from berth_agent.dra.service import ClaimKey, PreparedDevice
from berth_agent.vendor import CardAccess, RefusedError
from berth_agent.vendors.nvidia.hand_over.access import NvidiaAccess
from berth_agent.vendors.nvidia.hand_over.cdi import NVIDIA_CTK_VENDOR
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_api.device import ClaimedDevice, DeviceInfo, DeviceSpec, Mig, MigInstance
from berth_client.errors import ApiError
from berth_client.lists import PAGE
from tests.objects.devices import options, spec

BY_CDI = options(device_list_strategy=("cdi-cri",))


def machine() -> DeviceSpec:
    """Return two whole cards, and one with two instances."""
    described = spec(3)
    instances = [
        MigInstance(id=f"MIG-2-{number}", profile="1g.10gb", gpu_instance=number, compute_instance=0, memory="9856Mi")
        for number in range(2)
    ]
    divided = described.devices[2].model_copy(update={"mig": Mig(enabled=True, instances=instances)})
    return described.model_copy(update={"devices": [*described.devices[:2], divided]})


def parts(card: DeviceInfo) -> Sequence[MigInstance]:
    return card.mig.instances if card.mig else ()


def renumbered(*minors: int | None) -> DeviceSpec:
    """Return the machine after a reload of the GPU driver: with other minors, and without the cards that have none."""
    cards = zip(machine().devices, minors, strict=True)
    present = [card.model_copy(update={"minor": minor}) for card, minor in cards if minor is not None]
    return machine().model_copy(update={"devices": present})


class Node:
    """A node with its API server and disk; `restart` returns what a new agent would run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claims: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.by_name: frozenset[str] = frozenset()
        self.by_claim: Sequence[ClaimedDevice] = ()
        self.lingering = frozenset[str]()
        self.vendor: dict[str, Any] = {}
        self.cards = machine()
        self.is_known = True
        self.boot = "boot-1"
        self.keeps_taints: bool | None = True
        """Whether the API server keeps taints in slices; None for no answer."""
        self.keeps_shares: bool | None = True
        self.keeps_counters = True

    async def request(
        self,
        _method: str,
        _path: str,
        *,
        params: object,
        body: dict[str, Any],
        timeout: float,  # noqa: ASYNC109, ARG002 - part of the interface
    ) -> dict[str, Any]:
        assert params == {"dryRun": "All"}
        if self.keeps_taints is None or self.keeps_shares is None:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", "not now")
        [device] = body["spec"]["devices"]
        dropped = {*(() if self.keeps_taints else ["taints"]), *(() if self.keeps_counters else ["consumesCounters"])}
        kept = {name: field for name, field in device.items() if name not in dropped}
        if not self.keeps_shares:
            del kept["allowMultipleAllocations"]
            kept["capacity"] = {name: {"value": entry["value"]} for name, entry in kept["capacity"].items()}
        return body | {"spec": body["spec"] | {"devices": [kept]}}

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path.endswith("/pods"):
            number = int((params or {}).get("continue", "0"))
            more = {"continue": str(number + 1)} if number + 1 < len(self.pods) else {}
            last = {"continue": str(number)} if number else {}
            assert params == {"fieldSelector": "spec.nodeName=node", "limit": str(PAGE), **last}
            # A page may have fewer objects than were asked for.
            return {"metadata": more, "items": self.pods[number : number + 1]}
        name = path.rpartition("/")[2]
        if name not in self.claims:
            raise ApiError(HTTPStatus.NOT_FOUND, "NotFound", f'resourceclaims.resource.k8s.io "{name}" not found')
        return self.claims[name]

    def allocate(self, name: str, *allocated: str, uid: str = "", pool: str = "node", **fields: Any) -> ClaimKey:
        results = [
            {"request": "gpu/big", "driver": "gpu.berth.dev", "pool": pool, "device": device, **fields}
            for device in allocated
        ]
        results.append({"request": "nic", "driver": "dra.net", "pool": "other", "device": "eth0"})
        key = ClaimKey(uid=uid or f"uid-{name}", namespace="ns", name=name)
        metadata = {"name": name, "namespace": "ns", "uid": key.uid}
        self.claims[name] = {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}
        return key

    def state(self) -> NodeState | None:
        cards = self.cards
        nodes = DeviceNodes(control=("/dev/nvidiactl",), capabilities={(2, 0, -1): 3, (2, 0, 0): 4, (0, 0, 0): 9})
        access = NvidiaAccess(spec=cards, options=BY_CDI, nodes=nodes, **self.vendor)
        listed = {device.name: device for device in devices.listed(cards, None, roots={})}
        if not self.is_known:
            return None
        return NodeState(
            devices=listed,
            by_name=self.by_name,
            access=lambda: access,
            nic_edits=lambda _: {},
            by_claim=self.by_claim,
            card_of={id_: card.id for card in cards.devices for id_ in (card.id, *(part.id for part in parts(card)))},
        )

    def restart(
        self, store: ClaimCheckpoint | None = None, *, wait: float = WAIT, partitions: Any = None
    ) -> Preparation:
        return Preparation(
            api=self,
            store=store or ClaimCheckpoint(self.folder / "state"),
            cdi_folder=self.folder / "cdi",
            pool="node",
            boot=self.boot,
            state=self.state,
            wait=wait,
            partitions=partitions,
            lingering=lambda: self.lingering,
        )

    def files(self) -> dict[str, Any]:
        """Return what is in the folder of CDI files, without the claims' records."""
        paths = (self.folder / "cdi").iterdir() if (self.folder / "cdi").is_dir() else ()
        contents = {path.name: json.loads(path.read_text()) for path in paths}
        for name, content in contents.items():
            content["devices"] = [
                device for device in content["devices"] if not name.endswith(f"_{device['name']}.json")
            ]
        return contents

    def recorded(self) -> dict[str, HeldClaim]:
        """Return what is in the checkpoint."""
        try:
            return ClaimCheckpoint(self.folder / "state").load()
        except AbsentError:
            return {}


async def renew(driver: Preparation, node: Node) -> None:
    """Renew the CDI files of claims by what the node has."""
    driver.renew(node.state)
    if driver.renewing:
        await driver.renewing


def node_paths(node: Node) -> dict[str, list[str]]:
    """Return the device nodes of each CDI device that the container runtime finds."""
    return {
        device["name"]: [entry["path"] for entry in device["containerEdits"].get("deviceNodes", ())]
        for name, content in node.files().items()
        if name.endswith(".json")
        for device in content["devices"]
    }


async def load(driver: Preparation) -> None:
    """Load the claims, and wait until what was recovered is written."""
    await driver.load()
    if driver.saving:
        await driver.saving


class Dying(ClaimCheckpoint):
    """Dies before or after it wrote."""

    def __init__(self, folder: Path, *, after: bool) -> None:
        super().__init__(folder)
        self._after = after

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        if self._after:
            super().save(claims)
        raise OSError("killed")


async def test_the_device_api_sees_a_claim_before_it_is_recorded_and_not_if_that_fails(tmp_path: Path) -> None:
    node = Node(tmp_path)
    seen: list[frozenset[str] | None] = []

    class Broken(ClaimCheckpoint):
        def save(self, claims: Mapping[str, HeldClaim]) -> None:  # noqa: ARG002
            seen.append(driver.cards())
            raise OSError("full")

    driver = node.restart(Broken(tmp_path / "state"))
    heard: list[frozenset[str] | None] = []
    driver.on_change = lambda: heard.append(driver.cards())
    with pytest.raises(RefusedError, match="full"):
        await driver.prepare(node.allocate("one", "gpu-0"))
    assert seen == [frozenset({"GPU-0"})]
    assert heard == [frozenset()]


async def test_a_claim_gets_its_card_and_its_instance_with_their_device_nodes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepared = await node.restart().prepare(node.allocate("two", "gpu-0", "mig-2-0"))
    assert prepared == tuple(
        PreparedDevice(
            request="gpu", pool="node", device=device, cdi_ids=(f"k8s.gpu.berth.dev/claim=uid-two-{device}",)
        )
        for device in ("gpu-0", "mig-2-0")
    )
    [content] = node.files().values()
    paths = {
        device["name"]: [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
        for device in content["devices"]
    }
    assert content["kind"] == "k8s.gpu.berth.dev/claim"
    assert paths == {
        "uid-two-gpu-0": ["/dev/nvidiactl", "/dev/nvidia0"],
        "uid-two-mig-2-0": [
            "/dev/nvidiactl",
            "/dev/nvidia2",
            "/dev/nvidia-caps/nvidia-cap3",
            "/dev/nvidia-caps/nvidia-cap4",
        ],
    }
    assert content["devices"][0]["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


async def test_devices_of_nvidias_specification_are_passed_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.vendor = {"vendor": NVIDIA_CTK_VENDOR}
    [prepared] = await node.restart().prepare(node.allocate("one", "gpu-0"))
    assert prepared.cdi_ids == ("nvidia.com/gpu=GPU-0",)
    # The file has the claim's record only.
    [content] = node.files().values()
    assert content["devices"] == []


@pytest.mark.parametrize("step", ["before the record", "after the record", "at the file"])
async def test_a_broken_prepare_is_repeated_and_released_without_a_rest(tmp_path: Path, step: str) -> None:
    node = Node(tmp_path)
    key = node.allocate("one", "gpu-0")
    broken = node.restart(None if step == "at the file" else Dying(tmp_path / "state", after=step.startswith("after")))
    if step == "at the file":
        (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(RefusedError):
        await broken.prepare(key)
    # No file is there without its record, which alone leads to its end.
    assert not node.files() or node.recorded()
    (tmp_path / "cdi").unlink(missing_ok=True)
    again = node.restart()
    prepared = await again.prepare(key)
    assert [device.device for device in prepared] == ["gpu-0"]
    files = node.files()
    # Repeated, after a restart, and after a reboot, which removes the file.
    assert await node.restart().prepare(key) == prepared
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    node.boot = "boot-2"
    rebooted = node.restart()
    assert await rebooted.prepare(key) == prepared
    assert node.files() == files
    # A release that breaks is repeated, too, also when the claim is gone.
    node.claims.clear()
    with pytest.raises(RefusedError):
        await node.restart(Dying(tmp_path / "state", after=False)).unprepare(key)
    last = node.restart()
    await last.unprepare(key)
    await last.unprepare(key)
    assert (node.files(), last.cards(), node.recorded()) == ({}, frozenset(), {})


@pytest.mark.looptime
async def test_a_card_is_waited_for_and_never_given_twice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    first, second = node.allocate("first", "gpu-0"), node.allocate("second", "gpu-0")
    await driver.prepare(first)
    waiting = asyncio.create_task(driver.prepare(second))
    await asyncio.sleep(5)
    assert not waiting.done()
    await driver.unprepare(first)
    assert [device.device for device in await waiting] == ["gpu-0"]
    start = asyncio.get_running_loop().time()
    with pytest.raises(RefusedError, match="gpu-0 is still prepared for ResourceClaim ns/second"):
        await driver.prepare(first)
    assert WAIT <= asyncio.get_running_loop().time() - start < WAIT + 1
    # Admin access holds nothing.
    admin = node.allocate("admin", "gpu-0", adminAccess=True)
    await driver.prepare(admin)
    assert driver.cards() == frozenset({"GPU-0"})


@pytest.mark.looptime
async def test_a_claim_of_an_earlier_boot_keeps_no_other_from_its_card(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first, second = node.allocate("first", "gpu-0"), node.allocate("second", "gpu-0")
    await node.restart().prepare(first)
    node.boot = ""
    with pytest.raises(RefusedError, match="still prepared"):
        await node.restart().prepare(second)
    node.boot = "boot-2"
    rebooted = node.restart()
    # The device API still does not give the card, because kubelet may prepare the claim again.
    assert rebooted.cards() == frozenset({"GPU-0"})
    await rebooted.prepare(second)
    with pytest.raises(RefusedError, match="gpu-0 is still prepared for ResourceClaim ns/second"):
        await rebooted.prepare(first)


async def test_a_prepared_claim_keeps_its_card_when_the_minors_change(tmp_path: Path) -> None:
    """kubelet starts its containers again without a call."""
    node = Node(tmp_path)
    driver = node.restart()
    await driver.prepare(node.allocate("one", "gpu-0"))
    await driver.prepare(node.allocate("parts", "mig-2-0", "mig-2-1"))
    contents = {path.name: path.read_text() for path in (tmp_path / "cdi").iterdir()}
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "cdi").iterdir()}
    await renew(driver, node)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "cdi").iterdir()} == inodes
    node.cards = renumbered(1, 2, 0)
    # Also by an agent that has just started.
    driver = node.restart()
    await renew(driver, node)
    await driver.prepare(node.allocate("two", "gpu-1"))
    control, cap = "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap9"
    assert node_paths(node) == {
        "uid-one-gpu-0": [control, "/dev/nvidia1"],
        "uid-two-gpu-1": [control, "/dev/nvidia2"],
        "uid-parts-mig-2-0": [control, "/dev/nvidia0", cap],
        "uid-parts-mig-2-1": [control, "/dev/nvidia0"],
    }
    node.cards = machine()
    await renew(driver, node)
    for name, content in contents.items():
        assert (tmp_path / "cdi" / name).read_text() == content


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"devices": []}'])
async def test_a_file_that_another_program_removed_or_damaged_is_written_again(
    tmp_path: Path, content: bytes | None, *, restarts: bool
) -> None:
    """kubelet starts a container again without a call, and the runtime finds no device of the claim."""
    node = Node(tmp_path)
    driver = node.restart()
    await driver.prepare(node.allocate("one", "gpu-0", "mig-2-0"))
    [file] = (tmp_path / "cdi").iterdir()
    before = file.read_text()
    await renew(driver, node)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    if restarts:
        driver = node.restart(wait=0)
        await load(driver)
    await renew(driver, node)
    assert (file.read_text(), driver.withdrawn) == (before, "")


async def test_what_is_read_during_a_renewal_is_renewed_too(tmp_path: Path) -> None:
    """Otherwise the containers would keep a lost device until the cards are read once more."""
    node = Node(tmp_path)
    driver = node.restart()
    await driver.prepare(node.allocate("one", "gpu-0"))
    has_begun, goes_on = asyncio.Event(), threading.Event()

    def slow() -> NodeState | None:
        has_begun.set()
        read = node.state()
        assert read

        def access() -> CardAccess:
            assert goes_on.wait(60)
            return read.access()

        return replace(read, access=access)

    driver.renew(slow)
    await has_begun.wait()
    node.cards = renumbered(None, 0, 1)
    driver.renew(node.state)
    goes_on.set()
    assert driver.renewing
    await driver.renewing
    assert driver.withdrawn == "no container of ResourceClaim ns/one can start: the node has no device gpu-0 any more"


@pytest.mark.looptime
async def test_no_container_starts_while_a_device_of_its_claim_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver, key = node.restart(), node.allocate("one", "gpu-0", "mig-2-0")
    prepared = await driver.prepare(key)
    await driver.prepare(node.allocate("two", "gpu-1"))
    content = (tmp_path / "cdi" / "k8s.gpu.berth.dev-claim_uid-one.json").read_text()
    heard: list[str] = []
    driver.on_change = lambda: heard.append(driver.withdrawn)
    node.cards = renumbered(None, 0, 1)
    for _ in range(2):
        await renew(driver, node)
        assert node_paths(node) == {"uid-two-gpu-1": ["/dev/nvidiactl", "/dev/nvidia0"]}
    assert heard == ["no container of ResourceClaim ns/one can start: the node has no device gpu-0 any more"]
    # Its record is still known if the checkpoint is lost.
    (tmp_path / "state" / NAME).unlink()
    driver = node.restart(wait=0)
    await load(driver)
    assert driver.cards() == frozenset({"GPU-0", "GPU-1", "GPU-2"})
    # It returns. kubelet may also prepare the claim again, or release it.
    node.cards = machine()
    await renew(driver, node)
    assert (tmp_path / "cdi" / "k8s.gpu.berth.dev-claim_uid-one.json").read_text() == content
    assert (len(node.files()), driver.withdrawn) == (2, "")
    node.cards = renumbered(None, 0, 1)
    await renew(driver, node)
    node.cards = machine()
    assert await driver.prepare(key) == prepared
    assert (len(node.files()), driver.withdrawn) == (2, "")
    node.cards = renumbered(None, 0, 1)
    await renew(driver, node)
    await driver.unprepare(key)
    assert (list(node.files()), driver.withdrawn) == (["k8s.gpu.berth.dev-claim_uid-two.json"], "")


@pytest.mark.looptime
async def test_on_a_full_disk_no_container_starts_with_the_card_of_another(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    await driver.prepare(node.allocate("one", "gpu-0"))
    await driver.prepare(node.allocate("two", "mig-2-0"))
    node.cards = renumbered(1, 0, 2)
    with no_room():
        for _ in range(2):
            await renew(driver, node)
            assert list(node_paths(node)) == ["uid-two-mig-2-0"]
            assert "ResourceClaim ns/one can start: its CDI file is not written: " in driver.unwritten
    await renew(driver, node)
    assert node_paths(node)["uid-one-gpu-0"] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert len(node.files()) == 2


async def test_the_files_of_an_earlier_boot_stay_as_they_are(tmp_path: Path) -> None:
    """Their cards may be of other claims. kubelet prepares them again before a container starts."""
    node = Node(tmp_path)
    await node.restart().prepare(node.allocate("one", "gpu-0"))
    files = node.files()
    node.boot, node.cards = "boot-2", renumbered(None, 0, 1)
    driver = node.restart()
    await renew(driver, node)
    assert (node.files(), driver.withdrawn) == (files, "")


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("allocated", "by_name", "message"),
    [
        pytest.param("gpu-1", {"GPU-1"}, "a pod has gpu-1 by name", id="card"),
        pytest.param("mig-2-0", {"GPU-2"}, "a pod has mig-2-0 by name", id="card of the instance"),
        pytest.param("gpu-9", set(), "the node has no device gpu-9 now", id="lost"),
        pytest.param("mig-2-0", {"MIG-2-1"}, "a pod has another part of the card of mig-2-0", id="other instance"),
        pytest.param("gpu-1", {"GPU-0"}, "", id="other card"),
    ],
)
async def test_a_card_of_a_pod_is_refused(tmp_path: Path, allocated: str, by_name: set[str], message: str) -> None:
    node = Node(tmp_path)
    node.by_name = frozenset(by_name)
    key = node.allocate("one", allocated)
    if message:
        with pytest.raises(RefusedError, match=message):
            await node.restart().prepare(key)
        assert node.files() == {}
    else:
        await node.restart().prepare(key)


@pytest.mark.looptime
async def test_a_claim_that_kubelet_does_not_mean_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    with pytest.raises(RefusedError, match="not found"):
        await driver.prepare(ClaimKey(uid="uid", namespace="ns", name="gone"))
    replaced = node.allocate("one", "gpu-0", uid="new")
    with pytest.raises(RefusedError, match="has the UID new, not old: it was replaced"):
        await driver.prepare(ClaimKey(uid="old", namespace="ns", name="one"))
    with pytest.raises(RefusedError, match="no UID"):
        await driver.prepare(ClaimKey(uid="../../etc", namespace="ns", name="one"))
    elsewhere = node.allocate("two", "gpu-0", pool="other")
    with pytest.raises(RefusedError, match="in other; this node's pool is node"):
        await driver.prepare(elsewhere)
    node.is_known = False
    with pytest.raises(RefusedError, match="not known yet"):
        await driver.prepare(replaced)


MPS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}


def configured(node: Node, name: str, *requests: str, driver: str = "gpu.berth.dev", **fields: str) -> None:
    """Add parameters for a driver to an allocated claim."""
    entry = {"requests": list(requests), "opaque": {"driver": driver, "parameters": MPS}, **fields}
    node.claims[name]["status"]["allocation"]["devices"]["config"] = [entry]


@pytest.mark.parametrize(
    ("requests", "source", "place"),
    [
        ((), "FromClaim", "spec.devices.config"),
        (("gpu",), "FromClaim", "spec.devices.config"),
        (("nic", "gpu/big"), "FromClaim", "spec.devices.config"),
        (("gpu/big",), "FromClass", "spec.config of its DeviceClass"),
    ],
)
async def test_parameters_that_the_driver_does_not_have_are_refused(
    tmp_path: Path, requests: Sequence[str], source: str, place: str
) -> None:
    node = Node(tmp_path)
    driver, key = node.restart(), node.allocate("c", "gpu-0")
    configured(node, "c", *requests, source=source)
    with pytest.raises(RefusedError) as refused:
        await driver.prepare(key)
    assert str(refused.value) == (
        f"{key.title}: {place} has parameters 'GpuConfig' for gpu.berth.dev, which takes none: remove them. "
        "To share a card, request a part of its capacity (docs/tasks/shares-by-claim.md); "
        "with MPS, request a share by name (docs/tasks/limits.md)"
    )
    assert not driver.held


async def test_parameters_for_other_requests_and_drivers_are_none_of_the_driver(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver, key = node.restart(), node.allocate("c", "gpu-0")
    configured(node, "c", "nic")
    await driver.prepare(key)
    key = node.allocate("d", "gpu-1")
    configured(node, "d", driver="dra.net")
    await driver.prepare(key)


async def test_a_claim_that_an_earlier_agent_prepared_keeps_its_card_whatever_its_parameters(tmp_path: Path) -> None:
    """Test an upgrade, and a reboot after it."""
    node = Node(tmp_path)
    key = node.allocate("c", "gpu-0")
    prepared = await node.restart().prepare(key)  # as the earlier agent, which does not see them
    configured(node, "c")
    assert await node.restart().prepare(key) == prepared
    node.boot = "boot-2"
    assert await node.restart().prepare(key) == prepared


def test_a_checkpoint_is_read_leniently(tmp_path: Path) -> None:
    store = ClaimCheckpoint(tmp_path)
    device = {"request": "gpu", "device": "gpu-0", "id": "GPU-0", "card": "GPU-0", "new": 1}
    entry = {"namespace": "ns", "name": "one", "boot": "b", "devices": [device], "later": {"field": 2}}
    (tmp_path / NAME).write_text(json.dumps({"version": 2, "claims": {"good": entry}}))
    assert list(store.load()) == ["good"]
    (tmp_path / NAME).write_text(json.dumps({"version": 2, "claims": {"good": entry, "bad": {}, "../up": entry}}))
    with pytest.raises(DamagedError, match="up") as damaged:
        store.load()
    assert list(damaged.value.claims) == ["good"]
    for text in ("", "{", "[]", '{"claims": 3}'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(DamagedError) as damaged:
            store.load()
        assert damaged.value.claims == {}


@pytest.mark.looptime
@pytest.mark.parametrize("damage", ["all of it", "an entry", "absent", "an earlier one", "and a CDI file"])
async def test_a_damaged_checkpoint_costs_no_claim_its_card(tmp_path: Path, damage: str) -> None:
    node = Node(tmp_path)
    record = tmp_path / "state" / NAME
    before = node.restart()
    keys = [node.allocate("one", "gpu-0"), node.allocate("two", "mig-2-0")]
    await before.prepare(keys[0])
    early = record.read_text()
    prepared = await before.prepare(keys[1])
    match damage:
        case "all of it" | "and a CDI file":
            record.write_text('{"claims": {"uid-one"')
        case "an entry":
            record.write_text(record.read_text().replace('"card":"GPU-0"', '"card":3'))
        case "absent":
            record.unlink()
        case _:
            record.write_text(early)
    content = record.read_text() if record.exists() else ""
    broken = tmp_path / "cdi" / "k8s.gpu.berth.dev-claim_uid-two.json"
    if damage == "and a CDI file":
        broken.write_text("")

    # What kubelet reports decides, too. Until it has answered, any card may be a claim's.
    node.is_known = False
    driver = node.restart(wait=0)
    await driver.load()
    assert driver.cards() is None
    node.is_known = True
    node.by_claim = (ClaimedDevice(namespace="ns", claim="one", driver="gpu.berth.dev", pool="node", device="gpu-0"),)
    await load(driver)
    assert driver.cards() == (None if damage == "and a CDI file" else frozenset({"GPU-0", "GPU-2"}))
    assert ("drain the node; if that does not help, reboot it" in driver.failure) == (damage == "and a CDI file")
    assert (record.with_name(f"{NAME}.rejected").read_text() if content else "") == content

    other = node.allocate("other", "gpu-0")
    with pytest.raises(RefusedError, match=r"prepared for ResourceClaim ns/one|which devices"):
        await driver.prepare(other)
    # kubelet's own calls know more.
    assert await driver.prepare(keys[1]) == prepared
    assert driver.cards() == frozenset({"GPU-0", "GPU-2"})
    assert node.restart().cards() == driver.cards()
    for key in keys:
        await driver.unprepare(key)
    assert (node.files(), node.recorded()) == ({}, {})
    await driver.prepare(other)


@pytest.mark.looptime
async def test_a_monitor_of_a_lost_checkpoint_keeps_no_card(tmp_path: Path) -> None:
    node = Node(tmp_path)
    before = node.restart()
    for key in (node.allocate("monitor", "gpu-0", "gpu-1", adminAccess=True), node.allocate("one", "gpu-0")):
        await before.prepare(key)
    (tmp_path / "state" / NAME).unlink()
    node.by_claim = [
        ClaimedDevice(namespace="ns", claim=claim, driver="gpu.berth.dev", pool="node", device=device)
        for claim, device in [("monitor", "gpu-0"), ("monitor", "gpu-1"), ("one", "gpu-0")]
    ]
    driver = node.restart(wait=0)
    await load(driver)
    assert (driver.cards(), node.recorded()) == (before.cards(), ClaimCheckpoint(tmp_path / "state").load())
    await driver.prepare(node.allocate("two", "gpu-1"))
    with pytest.raises(RefusedError, match="gpu-0 is still prepared for ResourceClaim ns/one"):
        await driver.prepare(node.allocate("three", "gpu-0"))


@pytest.mark.looptime
async def test_two_claims_of_one_card_that_only_kubelet_names_are_two(tmp_path: Path) -> None:
    """The one with admin access is prepared again, and the other still has the card."""
    node = Node(tmp_path)
    node.by_claim = [
        ClaimedDevice(namespace="ns", claim=claim, driver="gpu.berth.dev", pool="node", device="gpu-0")
        for claim in ("one", "monitor")
    ]
    driver = node.restart(wait=0)
    await driver.prepare(node.allocate("monitor", "gpu-0", adminAccess=True))
    assert driver.cards() == frozenset({"GPU-0"})
    with pytest.raises(RefusedError, match="gpu-0 is still prepared for ResourceClaim ns/one"):
        await driver.prepare(node.allocate("two", "gpu-0"))


@pytest.mark.looptime
async def test_a_slow_disk_under_a_call_does_not_stop_the_next_look(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.by_claim = [ClaimedDevice(namespace="ns", claim="lost", driver="gpu.berth.dev", pool="node", device="gpu-9")]
    disk = threading.Event()

    class Slow(ClaimCheckpoint):
        def save(self, claims: Mapping[str, HeldClaim]) -> None:
            disk.wait()
            super().save(claims)

    driver = node.restart(Slow(tmp_path / "state"))
    try:
        # What was recovered is written.
        async with asyncio.timeout(1):
            await driver.load()
        assert driver.cards() == frozenset()
        disk.set()
        await load(driver)
        disk.clear()
        preparing = asyncio.create_task(driver.prepare(node.allocate("one", "gpu-0")))
        await asyncio.sleep(1)
        async with asyncio.timeout(1):
            await driver.load()
        assert driver.cards() == frozenset({"GPU-0"})
    finally:
        disk.set()
    await preparing


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Make every write to a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Filling(ClaimCheckpoint):
    """Writes what is the last that the disk has room for."""

    def __init__(self, folder: Path, until: contextlib.ExitStack) -> None:
        super().__init__(folder)
        self._until: contextlib.ExitStack | None = until

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        super().save(claims)
        if self._until:
            self._until.enter_context(no_room())
        self._until = None


@pytest.mark.looptime
@pytest.mark.parametrize("step", ["record", "CDI file", "release"])
async def test_a_full_disk_leaves_nothing_half_and_is_a_problem_until_there_is_room(tmp_path: Path, step: str) -> None:
    node = Node(tmp_path)
    key = node.allocate("one", "gpu-0")
    before = node.restart()
    await before.prepare(node.allocate("other", "gpu-1"))
    if step == "release":
        await before.prepare(key)
    with contextlib.ExitStack() as full:
        driver = node.restart(Filling(tmp_path / "state", full) if step == "CDI file" else None, wait=0)
        if step != "CDI file":
            full.enter_context(no_room())
        with pytest.raises(RefusedError, match=r"ResourceClaim ns/one not .* not .*: .*File too large"):
            await (driver.unprepare if step == "release" else driver.prepare)(key)
        assert "ResourceClaim ns/one" in driver.unwritten
        # No drafts, and a card is free only if the disk says so.
        assert {path.name for folder in ("state", "cdi") for path in (tmp_path / folder).iterdir()} == {
            NAME,
            "k8s.gpu.berth.dev-claim_uid-other.json",
        }
        assert ("uid-one" in node.recorded()) == (step != "record")
        held = [device.card for claim in node.recorded().values() for device in claim.devices]
        assert driver.cards() == frozenset(held)
    # Another claim's success is not its own. A claim for which kubelet does not call again is no problem for long.
    await driver.prepare(node.allocate("third", "mig-2-0"))
    assert "ResourceClaim ns/one" in driver.unwritten
    if step == "record":
        await asyncio.sleep(REMEMBERED)
        assert driver.unwritten == ""
    await driver.unprepare(key)
    assert (driver.unwritten, list(node.recorded())) == ("", ["uid-other", "uid-third"])


class Unsure(ClaimCheckpoint):
    """Writes. While `fails`, it does not know whether that is on the disk."""

    fails = False

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        super().save(claims)
        if self.fails:
            raise OSError("Input/output error")


@pytest.mark.looptime
async def test_a_record_that_a_failed_write_left_on_the_disk_is_written_again(tmp_path: Path) -> None:
    """kubelet may give up, and then no call for the claim comes any more."""
    node = Node(tmp_path)
    store = Unsure(tmp_path / "state")
    driver = node.restart(store, wait=0)
    await driver.prepare(node.allocate("other", "gpu-1"))
    store.fails = True
    with pytest.raises(RefusedError, match="not prepared: the checkpoint of claims is not written: Input/output error"):
        await driver.prepare(node.allocate("one", "gpu-0"))
    assert (list(node.recorded()), driver.cards()) == (["uid-other", "uid-one"], frozenset({"GPU-1"}))
    store.fails = False
    await load(driver)
    assert list(node.recorded()) == ["uid-other"]


@pytest.mark.looptime
async def test_a_full_disk_does_not_keep_recovered_claims_from_being_known(tmp_path: Path) -> None:
    node = Node(tmp_path)
    key = node.allocate("one", "gpu-0")
    await node.restart().prepare(key)
    record = tmp_path / "state" / NAME
    record.write_text("damaged")
    driver = node.restart(wait=0)
    # The log would be written to a file.
    with no_room(), capture_logs():
        for _ in range(2):
            await load(driver)
            assert (driver.cards(), driver.failure) == (frozenset({"GPU-0"}), "")
            assert "the checkpoint of claims is not written: " in driver.unwritten
        with pytest.raises(RefusedError, match="not prepared: the checkpoint of claims is not written"):
            await driver.prepare(node.allocate("two", "gpu-1"))
        assert record.read_text() == "damaged"
    await load(driver)
    assert (driver.cards(), list(node.recorded())) == (frozenset({"GPU-0"}), [key.uid])
    assert "the checkpoint" not in driver.unwritten.removeprefix("ResourceClaim ns/two not prepared: the checkpoint")
    assert record.with_name(f"{NAME}.rejected").read_text() == "damaged"


@pytest.mark.parametrize("content", [None, b"", b'{"version": 9}'])
async def test_a_checkpoint_that_another_program_removed_or_damaged_is_written_again(
    tmp_path: Path, content: bytes | None
) -> None:
    """Together with the CDI files, it would be lost at the next start."""
    node = Node(tmp_path)
    driver = node.restart()
    await driver.prepare(node.allocate("one", "gpu-0", "mig-2-0"))
    before, file = node.recorded(), tmp_path / "state" / NAME
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    await renew(driver, node)
    await load(driver)
    assert node.recorded() == before
    # One that is right is left alone.
    inode = file.stat().st_ino
    await renew(driver, node)
    await load(driver)
    assert file.stat().st_ino == inode


@pytest.mark.looptime
async def test_a_card_of_a_claim_that_only_kubelet_names_is_kept_until_it_is_free(tmp_path: Path) -> None:
    """After a reboot, which removes the CDI files, with a damaged checkpoint."""
    node = Node(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_text("damaged")
    reported = [
        ClaimedDevice(namespace="ns", claim=claim, driver="gpu.berth.dev", pool="node", device=device)
        for claim, device in [("one", "gpu-0"), ("two", "gpu-1"), ("lost", "gpu-9")]
    ]
    node.by_claim = reported
    driver = node.restart(wait=0)
    await load(driver)
    assert (driver.cards() or frozenset()) >= {"GPU-0", "GPU-1"}
    with pytest.raises(RefusedError, match="gpu-1 is still prepared for ResourceClaim ns/two"):
        await driver.prepare(node.allocate("other", "gpu-1"))
    # kubelet prepares one claim again, and the containers of the other have ended. While it starts, it reports nothing.
    await driver.prepare(node.allocate("one", "gpu-0"))
    restarted = node.restart(wait=0)
    for answer in ([], reported, reported[:1]):
        node.by_claim = answer
        await load(restarted)
        assert restarted.cards() == frozenset({"GPU-0", "GPU-1"})
        await asyncio.sleep(ENDED_SECONDS - 1)
    await asyncio.sleep(1)
    # Its pod was deleted by force, and a process of it still runs.
    node.lingering = frozenset({"pod"})
    await load(restarted)
    assert restarted.cards() == frozenset({"GPU-0", "GPU-1"})
    node.lingering = frozenset()
    await load(restarted)
    assert restarted.cards() == frozenset({"GPU-0"})
    await restarted.prepare(node.allocate("other", "gpu-1"))


async def test_a_partition_of_no_claim_stays_while_a_claim_has_an_instance_of_its_card(tmp_path: Path) -> None:
    class Maker:
        destroyed: Sequence[str] = ()

        async def destroy(self, key: str) -> None:
            self.destroyed = (*self.destroyed, key)

    node, maker = Node(tmp_path), Maker()
    driver, state = node.restart(partitions=maker), node.state()
    assert state
    [instance] = (name for name, device in state.devices.items() if device.id == "MIG-2-0")
    key = node.allocate("one", instance)
    await driver.prepare(key)
    stays = "partition left/gpu, which no claim has, stays: a claim has an instance of GPU-2"
    assert (await driver.destroy_left({"left/gpu": "GPU-2"}), maker.destroyed) == (stays, ())
    await driver.unprepare(key)
    assert (await driver.destroy_left({"left/gpu": "GPU-2"}), maker.destroyed) == ("", ("left/gpu",))


async def test_a_refusal_that_kubelet_no_longer_waits_for_is_no_error(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    first, second = (node.allocate(name, "gpu-0") for name in ("first", "second"))
    calls = [asyncio.create_task(driver.prepare(claim)) for claim in (first, second)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    # It takes its turn after the call that was given up.
    await driver.unprepare(second)
    calls.clear()
    gc.collect()
    assert errors == []
    assert [claim.name for claim in driver.held.values()] == ["first"]


async def test_a_prepare_that_an_unprepare_overtook_records_nothing(tmp_path: Path) -> None:
    class SlowNode(Node):
        answers = asyncio.Event()

        async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
            await self.answers.wait()
            return await super().get(path, params)

    node = SlowNode(tmp_path)
    driver = node.restart()
    claim = node.allocate("one", "gpu-0")
    # kubelet gave it up when its connection broke, which the agent has not heard yet.
    late = asyncio.create_task(driver.prepare(claim))
    await asyncio.sleep(0)
    await driver.unprepare(claim)
    node.answers.set()
    with pytest.raises(RefusedError, match="was released"):
        await late
    assert (driver.held, node.files()) == ({}, {})
    assert await driver.prepare(claim)


async def test_the_device_api_hears_of_a_release_also_if_kubelet_no_longer_waits(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    key = node.allocate("one", "gpu-0")
    await driver.prepare(key)
    heard: list[frozenset[str] | None] = []
    driver.on_change = lambda: heard.append(driver.cards())
    releasing = asyncio.create_task(driver.unprepare(key))
    await asyncio.sleep(0)
    releasing.cancel()
    # Calls for claims take turns.
    await driver.prepare(node.allocate("two", "gpu-1"))
    assert heard == [frozenset(), frozenset({"GPU-1"})]


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["prepare", "unprepare", "die", "restart"])))
DEVICES = {"a": ("gpu-0",), "b": ("gpu-0", "mig-2-0"), "c": ("mig-2-0", "mig-2-1")}


@settings(max_examples=50, deadline=None)
@given(steps=STEPS)
async def test_no_device_has_two_claims_and_nothing_is_left(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = Node(Path(name))
        keys = {claim: node.allocate(claim, *allocated) for claim, allocated in DEVICES.items()}
        driver = node.restart(wait=0)
        await load(driver)
        for claim, step in steps:
            if step == "prepare":
                with contextlib.suppress(RefusedError):
                    await driver.prepare(keys[claim])
            elif step == "unprepare":
                await driver.unprepare(keys[claim])
            elif step == "die":
                with contextlib.suppress(RefusedError):
                    await node.restart(Dying(node.folder / "state", after=True), wait=0).prepare(keys[claim])
            if step in {"restart", "die"}:
                driver = node.restart(wait=0)
                await load(driver)
            held = [device for one in node.recorded().values() for device in one.devices]
            assert len(held) == len({device.id for device in held})
            assert driver.cards() == frozenset(device.card for device in held)
        for key in keys.values():
            await driver.unprepare(key)
        assert (node.files(), node.recorded()) == ({}, {})
