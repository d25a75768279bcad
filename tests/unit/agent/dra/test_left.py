"""The driver is off, and pods with claims still run: no pod gets their cards by name until they have ended."""

import json
from pathlib import Path

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.dra.checkpoint import NAME
from berth_agent.dra.left import LeftClaims
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_api.device import ClaimedDevice
from tests.unit.agent.dra.test_preparation import Node, machine

CLAIMS = {"one": ("gpu-0",), "two": ("mig-2-0",), "monitor": ("gpu-0", "gpu-1", "mig-2-1")}


def device(claim: str, name: str, **fields: str) -> ClaimedDevice:
    kubelets = {"namespace": "ns", "driver": "gpu.berth.dev", "pool": "node", **fields}
    return ClaimedDevice(claim=claim, device=name, **kubelets)


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
    settings = Settings(node_name="node", checkpoint=tmp_path / "state/pods.json", cdi_folder=tmp_path / "cdi")
    left = LeftClaims(settings, spec=machine, by_claim=lambda: reported)
    # Before kubelet has answered, and what it reports then.
    assert left.withheld() == {"GPU-0", "GPU-2"}
    reported = [device(claim, name) for claim, names in CLAIMS.items() for name in names]
    assert left.withheld() == {"GPU-0", "GPU-2"}
    for unit in ("GPU-0", "GPU-0::1", "GPU-2", "MIG-2-0", "MIG-2-1"):
        with pytest.raises(AllocationRefusedError, match="a ResourceClaim has its card"):
            left.refuse(["GPU-1", unit])
    left.refuse(["GPU-1"])
    # kubelet is away, and then the containers of a claim have ended.
    reported = None
    assert left.withheld() == {"GPU-0", "GPU-2"}
    reported = [device("two", "mig-2-0"), device("other", "gpu-0", driver="gpu.nvidia.com")]
    assert left.withheld() == {"GPU-2"}
    left.refuse(["GPU-0"])
    reported = None
    assert left.withheld() == {"GPU-2"}
    reported = []
    assert left.withheld() == set()


def test_where_no_claim_was_prepared_nothing_is_withheld_unless_kubelet_reports_it(tmp_path: Path) -> None:
    settings = Settings(node_name="node", checkpoint=tmp_path / "state/pods.json", cdi_folder=tmp_path / "cdi")
    reported: list[ClaimedDevice] | None = None
    left = LeftClaims(settings, spec=machine, by_claim=lambda: reported)
    assert left.withheld() == set()
    reported = [device("one", "mig-2-0"), device("one", "gpu-9")]
    assert left.withheld() == {"GPU-2"}
