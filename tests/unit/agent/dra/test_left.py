"""The driver is off, and pods with claims still run: no pod gets their cards by name until they have ended."""

import contextlib
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from berth_agent.configuration.settings import Settings
from berth_agent.dra.checkpoint import NAME
from berth_agent.dra.left import LeftClaims
from berth_agent.dra.recovery import ENDED_SECONDS
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_api.device import ClaimedDevice
from tests.unit.agent.dra.test_preparation import Node, machine

CLAIMS = {"one": ("gpu-0",), "two": ("mig-2-0",), "monitor": ("gpu-0", "gpu-1", "mig-2-1")}


def device(claim: str, name: str, **fields: str) -> ClaimedDevice:
    kubelets = {"namespace": "ns", "driver": "gpu.berth.dev", "pool": "node", **fields}
    return ClaimedDevice(claim=claim, device=name, **kubelets)


def settings(folder: Path) -> Settings:
    state, cdi = folder / "state/pods.json", folder / "cdi"
    return Settings(node_name="node", checkpoint=state, cdi_folder=cdi, proc_root=folder)


@pytest.mark.parametrize("lost", ["", "checkpoint", "checkpoint damaged", "CDI files"])
async def test_a_card_of_a_claim_is_withheld_while_a_container_has_it(tmp_path: Path, lost: str) -> None:
    node = Node(tmp_path)
    driver = node.restart(wait=0)
    for claim, names in CLAIMS.items():
        await driver.prepare(node.allocate(claim, *names, adminAccess=claim == "monitor"))
    record = tmp_path / "state" / NAME
    match lost:
        case "checkpoint":
            record.unlink()
        case "checkpoint damaged":
            record.write_text(json.dumps({"claims": {"uid-one": 1}}))
        case "CDI files":
            for path in (tmp_path / "cdi").iterdir():
                path.unlink()
    reported: list[ClaimedDevice] | None = None
    now, lingering = 0.0, frozenset[str]()
    left = LeftClaims(
        settings(tmp_path),
        spec=machine,
        by_claim=lambda: reported,
        clock=lambda: now,
        lingering=lambda: lingering,
    )
    # Before kubelet has answered, while it does not know its pods yet, and what it reports then.
    assert left.withheld() == {"GPU-0", "GPU-2"}
    reported = []
    assert left.withheld() == {"GPU-0", "GPU-2"}
    reported = [device(claim, name) for claim, names in CLAIMS.items() for name in names]
    assert left.withheld() == {"GPU-0", "GPU-2"}
    for unit in ("GPU-0", "GPU-0::1", "GPU-2", "MIG-2-0", "MIG-2-1"):
        with pytest.raises(AllocationRefusedError, match="a ResourceClaim has its card"):
            left.refuse(["GPU-1", unit])
    left.refuse(["GPU-1"])
    # The containers of a claim have ended. While kubelet is away, it is not known which do.
    two = [device("two", "mig-2-0"), device("other", "gpu-0", driver="gpu.nvidia.com")]
    for answer, seconds in [(two, 0.0), (two, ENDED_SECONDS - 1), (None, 2), (two, 0), (two, ENDED_SECONDS - 1)]:
        reported, now = answer, now + seconds
        assert left.withheld() == {"GPU-0", "GPU-2"}
    now += 1
    assert left.withheld() == {"GPU-2"}
    left.refuse(["GPU-0"])
    for answer, seconds in [(None, ENDED_SECONDS), ([], 0)]:
        reported, now = answer, now + seconds
        assert left.withheld() == {"GPU-2"}
    now += ENDED_SECONDS
    lingering = frozenset({"pod"})
    assert left.withheld() == {"GPU-2"}
    lingering = frozenset()
    assert left.withheld() == set()


async def test_claims_of_an_earlier_boot_keep_no_cards(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.restart(wait=0).prepare(node.allocate("one", "gpu-0"))
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    for name, withheld in [("boot-1", frozenset({"GPU-0"})), ("boot-2", frozenset[str]())]:
        boot.write_text(f"{name}\n")
        with capture_logs() as logs:
            left = LeftClaims(
                settings(tmp_path), spec=machine, by_claim=lambda: None, clock=lambda: 0.0, lingering=frozenset
            )
        assert (left.withheld(), len(logs)) == (withheld, len(withheld))


def test_where_no_claim_was_prepared_nothing_is_withheld_unless_kubelet_reports_it(tmp_path: Path) -> None:
    reported: list[ClaimedDevice] | None = None
    left = LeftClaims(
        settings(tmp_path), spec=machine, by_claim=lambda: reported, clock=lambda: 0.0, lingering=frozenset
    )
    assert left.withheld() == set()
    reported = [device("one", "mig-2-0"), device("one", "gpu-9")]
    assert left.withheld() == {"GPU-2"}


@pytest.mark.parametrize(("name", "withheld"), [("gpu-2-1g-10gb-19-4", {"GPU-2"}), ("gpu-22-1g-10gb-19-4", set())])
def test_a_partition_that_was_made_is_on_the_card_that_its_name_begins_with(
    tmp_path: Path, name: str, withheld: set[str]
) -> None:
    left = LeftClaims(
        settings(tmp_path), spec=machine, by_claim=lambda: [device("one", name)], clock=lambda: 0.0, lingering=frozenset
    )
    assert left.withheld() == withheld
    with pytest.raises(AllocationRefusedError) if withheld else contextlib.nullcontext():
        left.refuse(["MIG-2-1"])
