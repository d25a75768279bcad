"""Shares by claim: each container gets its numbers, or is refused; no sum of shares is above its card."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_agent.dra import devices, slices
from berth_agent.dra.checkpoint import NAME, ClaimCheckpoint
from berth_agent.dra.modes import Mode, shown
from berth_agent.dra.service import ClaimKey
from berth_agent.readings import Reading
from berth_agent.vendor import RefusedError
from berth_api.names import CARDS_KEY
from berth_api.resources import quantity
from tests.unit.agent.dra.test_driver import Pods, start
from tests.unit.agent.dra.test_preparation import Node, load, machine, renew

pytestmark = pytest.mark.looptime

MEMORY: Final = 81920
"""MiB of each card of `machine`."""
Share = tuple[str, str, int, int]
"""Request, device, MiB and cores."""
ONE: Final[Share] = ("a", "gpu-0", 1024, 0)


def allocate(node: Node, name: str, *shares: Share, uid: str = "") -> ClaimKey:
    """Allocate a claim with shares, which is reserved for the pod of the same name."""
    key = node.allocate(name, uid=uid)
    status = node.claims[name]["status"]
    status["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
    status["allocation"]["devices"]["results"] = [
        {
            "request": request,
            "driver": "gpu.berth.dev",
            "pool": "node",
            "device": device,
            "shareID": f"{number}{key.uid}",
            "consumedCapacity": {"memory": f"{memory}Mi", "cores": str(cores)},
        }
        for number, (request, device, memory, cores) in enumerate(shares)
    ]
    return key


def add_pod(node: Node, name: str, *containers: Mapping[str, str], claims: Sequence[str] = ()) -> None:
    """Add a pod whose containers have claims, by name, with the request that they name, or with an empty string."""
    node.pods.append(
        {
            "metadata": {"name": name, "uid": f"pod-{name}"},
            "spec": {
                "resourceClaims": [
                    # The first one is of a template.
                    {"name": f"of-{claim}", **({"resourceClaimName": claim} if claim != name else {})}
                    for claim in (name, *claims)
                ],
                "containers": [
                    {
                        "name": f"c{number}",
                        "resources": {
                            "claims": [
                                {"name": f"of-{claim}", **({"request": request} if request else {})}
                                for claim, request in of_container.items()
                            ]
                        },
                    }
                    for number, of_container in enumerate(containers)
                ],
            },
            "status": {"resourceClaimStatuses": [{"name": f"of-{name}", "resourceClaimName": name}]},
        }
    )


def environments(node: Node, uid: str) -> dict[str, dict[str, str]]:
    """Return the variables of the CDI devices of a claim, by the end of their names."""
    content = node.files()[f"k8s.gpu.berth.dev-claim_{uid}.json"]
    return {
        device["name"].removeprefix(f"{uid}-"): dict(
            entry.split("=", 1) for entry in device["containerEdits"].get("env", ())
        )
        for device in content["devices"]
        # Not the record of the claim.
        if device["name"] != uid
    }


def numbers(*memory: int, cores: int) -> dict[str, str]:
    """Return the variables of a container with shares of so many cards, in MiB."""
    return {
        "NVIDIA_VISIBLE_DEVICES": "void",
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{number}": str(amount << 20) for number, amount in enumerate(memory)},
        "CUDA_DEVICE_SM_LIMIT": str(cores),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{number}={amount}M" for number, amount in enumerate(memory)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cores or 100),
    }


def test_only_whole_cards_are_shared_and_steps_divide_their_memory() -> None:
    spec = machine()
    card = spec.devices[0].model_copy(update={"resources": {"kubernetes.io/gpu-memory": f"{(MEMORY << 20) + 4096}"}})
    listed = devices.listed(spec.model_copy(update={"devices": [card, *spec.devices[1:]]}), None, roots={})
    offered = slices.by_card(shown(Mode.SHARES, listed, by_name={"GPU-1"}), with_taints=True)
    assert list(offered) == ["gpu-0", "gpu-2"]
    assert not any("allowMultipleAllocations" in device for device in offered["gpu-2"])
    [shared] = offered["gpu-0"]
    assert shared["allowMultipleAllocations"] is True
    # As the API server checks it.
    for capacity in shared["capacity"].values():
        policy = capacity["requestPolicy"]
        least, most, step = (quantity.parse(policy["validRange"][key]) for key in ("min", "max", "step"))
        default, value = quantity.parse(policy["default"]), quantity.parse(capacity["value"])
        assert least <= default <= most == value
        assert (most - least) % step == (default - least) % step == 0
    # A claim for a whole card gets one.
    assert (
        shared["capacity"]["memory"]["requestPolicy"]["default"] == shared["capacity"]["memory"]["value"] == "81920Mi"
    )
    for mode in (Mode.CLAIMS, Mode.BOTH):
        assert not any(device.shared for device in shown(mode, listed, by_name=()))


async def test_a_pod_whose_containers_do_not_name_its_claim_starts(tmp_path: Path) -> None:
    """Kubernetes allows that, and kubelet prepares the claim nevertheless."""
    node = Node(tmp_path)
    driver = node.restart()
    key = allocate(node, "first", ("gpu", "gpu-0", 20480, 25))
    add_pod(node, "first", {})
    [device] = await driver.prepare(key)
    assert device.device == "gpu-0"
    # As for a container that names the claim later.
    assert environments(node, "uid-first") == {"gpu-0.0uid-first": numbers(20480, cores=25)}


async def test_a_claim_that_no_pod_on_the_node_has_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    key = allocate(node, "first", ("gpu", "gpu-0", 20480, 25))
    add_pod(node, "second", {"second": ""})
    with pytest.raises(RefusedError, match="no pod on node for which ResourceClaim ns/first is reserved requests it"):
        await node.restart().prepare(key)


async def test_two_claims_have_shares_of_a_card_and_each_container_its_numbers(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    first = allocate(node, "first", ("gpu", "gpu-0", 20480, 25))
    second = allocate(node, "second", ("gpu/any", "gpu-0", 40960, 0))
    add_pod(node, "first", {"first": ""})
    add_pod(node, "second", {"second": "gpu"}, {})
    prepared = [device for key in (first, second) for device in await driver.prepare(key)]
    assert [(device.request, device.device, device.share_id) for device in prepared] == [
        ("gpu", "gpu-0", "0uid-first"),
        ("gpu", "gpu-0", "0uid-second"),
    ]
    assert prepared[0].cdi_ids == ("k8s.gpu.berth.dev/claim=uid-first-gpu-0.0uid-first",)
    assert environments(node, "uid-first") == {"gpu-0.0uid-first": numbers(20480, cores=25)}
    assert environments(node, "uid-second") == {"gpu-0.0uid-second": numbers(40960, cores=0)}
    # A repeated call after a restart of the agent, and after a reboot.
    node.boot = "boot-2"
    assert await node.restart().prepare(second) == (prepared[1],)
    assert driver.cards() == frozenset({"GPU-0"})


async def test_a_container_gets_the_numbers_of_all_its_cards(tmp_path: Path) -> None:
    node = Node(tmp_path)
    key = allocate(
        node,
        "both",
        ("b", "gpu-1", 2048, 0),
        ("a", "gpu-0", 1024, 30),
        ("c", "gpu-0", 512, 0),
        ("w", "gpu-1", 4096, 0),
        ("later", "gpu-0", 256, 7),
    )
    # Two shares of one card in two containers, and one that only a later pod names.
    add_pod(node, "both", {"both": "c"}, {"both": "w"})
    node.pods[0]["spec"]["containers"][1:1] = [
        {"name": "two", "resources": {"claims": [{"name": "of-both", "request": name} for name in "ba"]}}
    ]
    await node.restart().prepare(key)
    together = numbers(1024, 2048, cores=30)
    assert environments(node, "uid-both") == {
        "gpu-1.0uid-both": together,
        "gpu-0.1uid-both": together,
        "gpu-0.2uid-both": numbers(512, cores=0),
        "gpu-1.3uid-both": numbers(4096, cores=0),
        "gpu-0.4uid-both": numbers(256, cores=7),
    }


async def test_admin_access_takes_nothing_of_a_card(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    # As kube-scheduler writes it: with a share of the whole card.
    monitor = allocate(node, "monitor", ("gpu", "gpu-0", MEMORY, 0))
    node.claims["monitor"]["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    add_pod(node, "one", {"one": ""})
    await driver.prepare(monitor)
    await driver.prepare(allocate(node, "one", ONE))
    assert driver.cards() == frozenset({"GPU-0"})


async def test_whole_cards_have_no_limits(tmp_path: Path) -> None:
    node = Node(tmp_path)
    key = allocate(node, "whole", ("gpu", "gpu-0", MEMORY, 0), ("gpu", "gpu-1", MEMORY, 100))
    # By a DeviceClass: the scheduler's claim is in the pod's status.
    add_pod(node, "whole", {})
    node.pods[0]["status"] = {
        "extendedResourceClaimStatus": {
            "resourceClaimName": "whole",
            "requestMappings": [{"containerName": "c0", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}],
        }
    }
    await node.restart().prepare(key)
    assert all(
        variables == {"NVIDIA_VISIBLE_DEVICES": "void"} for variables in environments(node, "uid-whole").values()
    )


@pytest.mark.parametrize(
    ("shares", "containers", "message"),
    [
        pytest.param([ONE, ("b", "gpu-0", 1024, 0)], [{"one": ""}], "has two shares of gpu-0", id="one card"),
        pytest.param(
            [ONE, ("b", "gpu-1", 1024, 0)],
            [{"one": ""}, {"one": "a"}],
            "both have gpu-0, but different further cards",
            id="different cards",
        ),
        pytest.param(
            [ONE, ("b", "gpu-1", MEMORY, 0)],
            [{"one": "b"}, {"one": ""}],
            "both have gpu-1, but different further cards",
            id="a whole card next to a share",
        ),
        pytest.param([ONE, ("b", "mig-2-0", 0, 0)], [{"one": ""}], "mig-2-0, which is not shared", id="an instance"),
        pytest.param([ONE], [{"one": "", "other": ""}], "gpu-1 by another claim", id="two claims"),
        pytest.param([ONE], [{"other": ""}], "", id="no container"),
        pytest.param([ONE], [{"one": "", "nic": ""}], "", id="a claim of a NIC"),
        pytest.param([ONE, ("b", "gpu-0", 1024, 0)], [{"one": "a"}, {"one": "b"}], "", id="two containers"),
    ],
)
async def test_what_a_container_cannot_distinguish_is_refused_with_the_reason(
    tmp_path: Path, shares: list[Share], containers: list[dict[str, str]], message: str
) -> None:
    node = Node(tmp_path)
    node.allocate("other", "gpu-1")
    # A pod with it moved it into its network namespace.
    node.allocate("nic", "rdma-0000-1f-00-0")
    key = allocate(node, "one", *shares)
    for result in node.claims["one"]["status"]["allocation"]["devices"]["results"]:
        if result["device"].startswith("mig"):
            del result["shareID"], result["consumedCapacity"]
    add_pod(node, "one", *containers, claims=["other", "nic"])
    driver = node.restart()
    if message:
        with pytest.raises(RefusedError, match=message):
            await driver.prepare(key)
    else:
        await driver.prepare(key)
    assert len(node.files()) == len(driver.held) == (not message)


@pytest.mark.parametrize(
    ("share", "message"),
    [
        pytest.param(
            ("gpu", "gpu-0", MEMORY // 2 + 1, 0), "have 81921Mi of memory together; the card has 81920Mi", id="memory"
        ),
        pytest.param(
            ("gpu", "gpu-0", 1, 51), "have 101 hundredths of its cores together; the card has 100", id="cores"
        ),
        pytest.param(None, "gpu-0 is still prepared for ResourceClaim ns/held", id="the whole card"),
    ],
)
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_no_sum_of_shares_is_above_the_card(
    tmp_path: Path, share: Share | None, message: str, is_damaged: bool
) -> None:
    node = Node(tmp_path)
    held = allocate(node, "held", ("gpu", "gpu-0", MEMORY // 2, 50))
    add_pod(node, "held", {"held": ""})
    add_pod(node, "more", {"more": ""})
    await node.restart().prepare(held)
    if is_damaged:
        (tmp_path / "state" / NAME).write_text("damaged")
    driver = node.restart()
    more = allocate(node, "more", share) if share else node.allocate("more", "gpu-0")
    with pytest.raises(RefusedError, match=message):
        await driver.prepare(more)
    # It is waited for.
    waiting = asyncio.create_task(driver.prepare(more))
    await asyncio.sleep(1)
    await driver.unprepare(held)
    assert [device.device for device in await waiting] == ["gpu-0"]


CLAIMS: Final[Mapping[str, Share]] = {
    "a": ("gpu", "gpu-0", 40960, 60),
    "b": ("gpu", "gpu-0", 40960, 0),
    "c": ("gpu", "gpu-0", 8192, 40),
    "d": ("gpu", "gpu-0", MEMORY, 0),
}
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(["prepare", "unprepare", "restart", "damage"]), st.sampled_from([*CLAIMS, "whole"])),
    min_size=4,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
async def test_no_order_of_calls_gives_more_than_a_card(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        keys = {name: allocate(node, name, share) for name, share in CLAIMS.items()}
        keys["whole"] = node.allocate("whole", "gpu-0")
        for name in CLAIMS:
            add_pod(node, name, {name: ""})
        driver, prepared = node.restart(wait=0.0), set[str]()
        for step, name in steps:
            if step == "prepare":
                with contextlib.suppress(RefusedError):
                    await driver.prepare(keys[name])
                    prepared.add(name)
            elif step == "unprepare":
                await driver.unprepare(keys[name])
                prepared.discard(name)
            else:
                if step == "damage":
                    ClaimCheckpoint(Path(folder) / "state").save({})
                driver = node.restart(wait=0.0)
            # What the audit counts does not come from the driver's own sums.
            amounts = Counter[str]()
            for one in prepared:
                _, _, memory, cores = CLAIMS.get(one, ("", "", MEMORY, 100))
                amounts.update(memory=memory, cores=cores)
            assert amounts["memory"] <= MEMORY
            assert amounts["cores"] <= 100
            assert len(node.files()) == len(prepared)


@pytest.mark.parametrize("answer", [False, None])
async def test_a_server_that_drops_shares_gets_none_and_the_condition_says_why(
    tmp_path: Path, answer: bool | None
) -> None:
    driver, node, _ = start(tmp_path, Pods(), dra=True)
    labels, reading = {CARDS_KEY: "shares"}, Reading(spec=machine(), findings=())
    node.keeps_shares = answer
    await driver.update(reading, labels)
    assert driver.shown == []
    [finding] = [finding for finding in driver.view(reading).findings if finding.type == "ClaimsServed"]
    expected = "has no effect yet, and ResourceSlices stay as they are: it is not known whether"
    if answer is False:
        expected = "has no effect, and pods get cards by name: the API server drops shares of devices"
    assert f"label berth.dev/cards=shares {expected}" in finding.message
    # An answer that is late must not give a card in both ways.
    assert driver.withheld() == (set() if answer is False else {"GPU-0", "GPU-1", "GPU-2"})
    # After an upgrade of the API server, the agent finds out by itself.
    node.keeps_shares = True
    if answer is False:
        await driver.update(reading, labels)
        assert driver.shown == []
        await asyncio.sleep(600)
    await driver.update(reading, labels)
    assert {device.name for device in driver.shown if device.shared} == {"gpu-0", "gpu-1"}
    assert driver.withheld() == {"GPU-0", "GPU-1", "GPU-2"}
    # No answer later changes nothing.
    await asyncio.sleep(600)
    node.keeps_shares = None
    await driver.update(reading, labels)
    assert not driver.refusal


@pytest.mark.parametrize(
    ("has_shares", "offered", "why"),
    [
        (False, True, "cards of this vendor cannot be shared by claim"),
        (True, False, "another device plugin offers the cards, so they cannot be shared by claim"),
    ],
)
async def test_cards_of_vendors_without_limits_or_of_other_plugins_are_not_shared(
    tmp_path: Path, has_shares: bool, offered: bool, why: str
) -> None:
    driver, _, _ = start(tmp_path, Pods(), dra=True, has_shares=has_shares)
    await driver.update(Reading(spec=machine(), findings=(), offered=offered), {CARDS_KEY: "shares"})
    assert driver.shown == []
    assert driver.refusal == why


async def test_a_lost_file_with_limits_of_shares_is_written_again_only_by_the_agent_that_saw_it(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    driver = node.restart()
    key = allocate(node, "one", ONE)
    add_pod(node, "one", {"one": ""})
    await driver.prepare(key)
    [file] = (tmp_path / "cdi").iterdir()
    before = file.read_text()
    await renew(driver, node)
    file.unlink()
    await renew(driver, node)
    assert (file.read_text(), driver.withdrawn) == (before, "")
    file.unlink()
    driver = node.restart(wait=0)
    await load(driver)
    await renew(driver, node)
    assert not file.exists()
    assert "its CDI file is lost, with the limits of its shares; delete its pods" in driver.withdrawn
