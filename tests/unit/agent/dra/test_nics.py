"""RDMA NICs by claim: where they are, what a container gets of them, and that no pod has the same one by name."""

import asyncio
import base64
import json
import shutil
from pathlib import Path

import pytest

from berth_agent.dra import nics, slices
from berth_agent.dra.driver import ClaimDriver
from berth_agent.inventory import sysfs
from berth_agent.inventory.discovery.rdma import RdmaNics
from berth_agent.isolation.nics import LAG, NicProvider, taken
from berth_agent.isolation.provider import NodeView
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.readings import Reading
from berth_agent.vendor import RefusedError
from berth_api.allocation import Function, Grant
from berth_api.device import DeviceSpec
from berth_api.names import RDMA, RDMA_RESOURCE
from tests.objects.sysfs_tree import SysfsTree
from tests.unit.agent.dra.test_driver import Pods, start
from tests.unit.agent.dra.test_preparation import machine

pytestmark = pytest.mark.looptime

NIC, DIVIDED, FIRST, SECOND = "0000:18:00.0", "0000:28:00.0", "0000:28:00.1", "0000:28:00.2"
NAMES = {address: "rdma-" + address.replace(":", "-").replace(".", "-") for address in (NIC, DIVIDED, FIRST, SECOND)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a sysfs with a NIC, and another one that has two virtual functions and no link."""
    tree = SysfsTree(tmp_path / "sys")
    tree.rdma("mlx5_0", tree.device(NIC, numa="1"))
    divided = tree.device(DIVIDED, below="pci0000:20/0000:20:01.0", numa="-1")
    tree.rdma("mlx5_1", divided, port1="1: DOWN")
    for number, address in enumerate((FIRST, SECOND)):
        function = tree.device(address, below="pci0000:20/0000:20:01.0")
        tree.rdma(f"mlx5_{number + 2}", function)
        tree.virtual(divided, number, function)
    return tree.root


def spec(root: Path) -> DeviceSpec:
    """Return the cards of `machine`, and these NICs."""
    cards = [device for device in machine().devices if device.type == "gpu"]
    return machine().model_copy(update={"devices": [*cards, *RdmaNics(root).read("node")]})


def test_a_nic_is_listed_where_it_is_and_its_virtual_functions_in_place_of_it(root: Path) -> None:
    roots = {address: sysfs.pcie_root(root, address) for address in (NIC, DIVIDED)}
    listed = nics.listed(spec(root), roots=roots)
    by_nic = slices.by_card(listed, with_taints=True)
    assert list(by_nic) == ["0000-18-00-0", "0000-28-00-0"]
    [[nic], functions] = by_nic.values()
    common = {"type": {"string": "rdma"}, "productName": {"string": "Mellanox ConnectX-7"}}
    assert nic == {
        "name": "rdma-0000-18-00-0",
        "attributes": {
            **common,
            "linkLayer": {"string": "InfiniBand"},
            "rdmaDevice": {"string": "mlx5_0"},
            "resource.kubernetes.io/pciBusID": {"string": NIC},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
    }
    assert [function["name"] for function in functions] == ["rdma-0000-28-00-1", "rdma-0000-28-00-2"]
    for function, address in zip(functions, (FIRST, SECOND), strict=True):
        assert function["attributes"] == {
            **common,
            "linkLayer": {"string": "InfiniBand"},
            "resource.kubernetes.io/pciBusID": {"string": address},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:20"},
        }
        assert [taint["value"] for taint in function["taints"]] == ["LinkDown"]


async def test_a_claim_gets_a_card_and_the_device_files_of_its_nic(tmp_path: Path, root: Path) -> None:
    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {})
    await driver.claims.prepare(node.allocate("both", "gpu-0", NAMES[NIC]))
    [content] = node.files().values()
    [card, nic] = [
        [entry["path"] for entry in device["containerEdits"]["deviceNodes"]] for device in content["devices"]
    ]
    assert card == ["/dev/nvidiactl", "/dev/nvidia0"]
    files = ("uverbs-mlx5_0", "umad-mlx5_0", "issm-mlx5_0", "rdma_cm")
    assert nic == [f"/dev/infiniband/{file}" for file in files]
    # kubelet's device API has no NICs.
    assert driver.withheld() == {"GPU-0"}


async def test_a_prepared_claim_is_prepared_again_while_its_nic_is_in_its_pod(tmp_path: Path, root: Path) -> None:
    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {})
    key, other = node.allocate("one", "gpu-0", NAMES[NIC]), node.allocate("two", NAMES[NIC])
    prepared = await driver.claims.prepare(key)
    files = node.files()
    # A CNI plugin moves the RDMA device into the pod's network namespace, and its files stay.
    (root / "class/infiniband/mlx5_0").rename(tmp_path / "mlx5_0")
    restarted, again, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    again.claims = node.claims
    await restarted.update(Reading(spec=spec(root), findings=()), {})
    assert await restarted.claims.prepare(key) == prepared
    assert node.files() == files
    with pytest.raises(RefusedError, match="no device rdma-0000-18-00-0 now"):
        await restarted.claims.prepare(other)


async def test_a_prepared_claim_keeps_its_nic_when_the_numbers_of_device_files_change(
    tmp_path: Path, root: Path
) -> None:
    """kubelet starts its containers again without a call."""

    def numbers() -> list[tuple[str, int]]:
        return [
            (entry["path"], entry["minor"])
            for name, content in node.files().items()
            if name.endswith(".json")
            for entry in content["devices"][-1]["containerEdits"]["deviceNodes"]
            if "uverbs" in entry["path"]
        ]

    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await renew(driver, root)
    await driver.claims.prepare(node.allocate("one", "gpu-0", NAMES[NIC]))
    assert numbers() == [("/dev/infiniband/uverbs-mlx5_0", 3)]
    files = root / "class/infiniband_verbs"
    (files / "uverbs-mlx5_0").rename(files / "uverbs9")
    (files / "uverbs9/dev").write_text("231:201\n")
    await renew(driver, root)
    assert numbers() == [("/dev/infiniband/uverbs9", 201)]
    shutil.move(files / "uverbs9", tmp_path / "uverbs9")
    for kind in ("umad", "issm"):
        shutil.rmtree(root / f"class/infiniband_mad/{kind}-mlx5_0")
    await renew(driver, root)
    assert (numbers(), driver.claims.withdrawn.endswith(f"the NIC {NIC} has no RDMA device now")) == ([], True)
    shutil.move(tmp_path / "uverbs9", files / "uverbs9")
    await renew(driver, root)
    assert numbers() == [("/dev/infiniband/uverbs9", 201)]


async def renew(driver: ClaimDriver, root: Path) -> None:
    """Read the node with the driver, and wait until CDI files are written."""
    await driver.update(Reading(spec=spec(root), findings=()), {})
    if driver.claims.renewing:
        await driver.claims.renewing


@pytest.mark.parametrize(
    ("by_name", "wanted", "is_free"),
    [
        pytest.param({NIC}, NIC, False, id="the same NIC"),
        pytest.param({NIC}, FIRST, True, id="another NIC"),
        pytest.param({FIRST}, FIRST, False, id="the same function"),
        pytest.param({FIRST}, SECOND, False, id="another function of the NIC"),
        pytest.param({DIVIDED}, SECOND, False, id="the whole NIC of a function"),
    ],
)
async def test_no_claim_gets_what_a_pod_has_by_name(
    tmp_path: Path, root: Path, by_name: set[str], wanted: str, is_free: bool
) -> None:
    pods = Pods()
    pods.held = frozenset(by_name)
    driver, node, _ = start(tmp_path, pods, sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {"berth.dev/cards": "claims"})
    key = node.allocate("one", NAMES[wanted])
    if is_free:
        await driver.claims.prepare(key)
    else:
        with pytest.raises(RefusedError, match="by name"):
            await driver.claims.prepare(key)


@pytest.mark.parametrize(
    ("claimed", "by_name", "is_free"),
    [
        pytest.param(NIC, NIC, False, id="the same NIC"),
        pytest.param(NIC, DIVIDED, True, id="another NIC"),
        pytest.param(FIRST, DIVIDED, False, id="the whole NIC of a function"),
        pytest.param(FIRST, SECOND, False, id="another function of the NIC"),
    ],
)
async def test_no_pod_gets_by_name_what_a_claim_has(
    tmp_path: Path, root: Path, claimed: str, by_name: str, is_free: bool
) -> None:
    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {})
    await driver.claims.prepare(node.allocate("one", NAMES[claimed]))
    assert _is_refused(driver, by_name) is not is_free


def _is_refused(driver: ClaimDriver, address: str) -> bool:
    try:
        driver.refuse_claimed([address])
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("away", "listed"),
    [
        pytest.param(("mlx5_2",), NAMES[SECOND], id="its other function is listed"),
        pytest.param(("mlx5_2", "mlx5_3"), NAMES[DIVIDED], id="the NIC is listed"),
    ],
)
async def test_a_nic_stays_taken_while_a_pod_has_its_function_in_its_network_namespace(
    tmp_path: Path, root: Path, away: tuple[str, ...], listed: str
) -> None:
    pods = Pods()
    pods.held = frozenset(taken(pod_with(DIVIDED, FIRST).nics))
    driver, node, _ = start(tmp_path, pods, sysfs_root=root, nics=True)
    for name in away:
        (root / "class/infiniband" / name).rename(tmp_path / name)
    await driver.update(Reading(spec=spec(root), findings=()), {"berth.dev/cards": "claims"})
    assert [device.id for device in driver.shown if device.type == RDMA] == [NIC]
    with pytest.raises(RefusedError, match="by name"):
        await driver.claims.prepare(node.allocate("one", listed))


async def test_no_pod_gets_by_name_a_function_that_a_claim_has_in_a_network_namespace(
    tmp_path: Path, root: Path
) -> None:
    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {})
    await driver.claims.prepare(node.allocate("one", NAMES[FIRST]))
    (root / "class/infiniband/mlx5_2").rename(tmp_path / "mlx5_2")
    await driver.update(Reading(spec=spec(root), findings=()), {})
    provider = provider_for(pod_with(DIVIDED, FIRST), tmp_path, root)
    provider.refuse_claimed = driver.refuse_claimed
    with pytest.raises(RefusedError, match="prepared for a ResourceClaim"):
        await provider.before_start(["1"])
    # Nothing of it counts as given.
    assert not provider.unseen([])


async def test_a_pod_that_the_watch_does_not_show_yet_takes_the_nic_of_its_function(tmp_path: Path, root: Path) -> None:
    provider = provider_for(pod_with(DIVIDED, FIRST), tmp_path, root)
    await provider.before_start(["1"])
    assert provider.unseen([]) == {DIVIDED, FIRST}


def pod_with(nic: str, *functions: str) -> Pod:
    """Return a pod that has a NIC, or these virtual functions of it."""
    parts = tuple(Function(minor=minor, bus_id=address) for minor, address in enumerate(functions))
    grant = Grant(type=RDMA, minor=0, id=nic, amounts=((RDMA, 100),), functions=parts)
    return Pod(uid="uid", namespace="ns", name="new", nics=(grant,))


def provider_for(pod: Pod, folder: Path, root: Path) -> NicProvider:
    """Return a provider that kubelet asks for the unit 1 of a pod."""

    async def listed() -> tuple[list[Pod], int]:
        return [pod], 1

    entry = {"PodUID": "uid", "ContainerName": "main", "ResourceName": RDMA_RESOURCE, "DeviceIDs": {"-1": ["1"]}}
    entry["AllocResp"] = base64.b64encode(b"").decode()
    (folder / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    return NicProvider(sysfs=root, kubelet=folder, cdi_folder=folder, list_pods=listed)


async def test_no_claim_gets_the_nic_of_a_pod_that_the_watch_does_not_show_yet(tmp_path: Path, root: Path) -> None:
    pod = pod_with(NIC)
    driver, node, _ = start(tmp_path, Pods(), sysfs_root=root, nics=True)
    await driver.update(Reading(spec=spec(root), findings=()), {})
    provider = provider_for(pod, tmp_path, root)
    provider.refuse_claimed = driver.refuse_claimed
    shown: list[Pod] = []
    driver.unseen_nics = lambda: provider.unseen(shown)
    await provider.before_start(["1"])
    key = node.allocate("one", NAMES[NIC])
    with pytest.raises(RefusedError, match="by name"):
        await driver.claims.prepare(key)
    # The pod was deleted before the watch showed it.
    await asyncio.sleep(LAG)
    await driver.claims.prepare(key)
    with pytest.raises(RefusedError, match="prepared for a ResourceClaim"):
        await provider.before_start(["1"])
    await driver.claims.unprepare(key)
    # From when the watch shows the pod, it alone counts.
    await provider.before_start(["1"])
    shown.append(pod)
    await driver.claims.prepare(key)
    # Without a driver of claims, it is forgotten all the same.
    await driver.claims.unprepare(key)
    await provider.before_start(["1"])
    assert provider.unseen([])
    await provider.check(NodeView(spec=spec(root), pods=(pod,)))
    assert not provider.unseen([])
