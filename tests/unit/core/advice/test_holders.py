"""The row of a pod that holds devices."""

import pytest

from berth_operator.core.advice.holders import holder_row, holds_devices
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.owner import Owner
from tests.objects.builders import A100, GI, charge, fleet, grant

HALF = grant(0, core=50, ratio=50, memory=40 * GI)
PLAIN = charge("p", HALF)


def test_a_row_has_the_pod_s_devices_and_whose_it_is() -> None:
    of = fleet()
    job = Owner(kind="Job", name="train")
    of.charge(charge("p", HALF, owner=job, scheduler="berth", started=1_767_225_600, ends=1_767_229_200))
    assert holder_row(of, of.charges["uid-p"], drifted=True) == {
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
        "node": "node",
        "owner": {"kind": "Job", "name": "train"},
        "scheduler": "berth",
        "since": "2026-01-01T00:00:00Z",
        "endsBy": "2026-01-01T01:00:00Z",
        "devices": [
            {
                "type": "gpu",
                "minor": 0,
                "id": "GPU-0",
                "model": A100,
                "amounts": {"gpu-core": 50, "gpu-memory": 40 * GI, "gpu-memory-ratio": 50},
            }
        ],
        "drifted": True,
        "promised": False,
        "isolation": "",
        "exceeding": [],
    }


def test_the_owner_of_a_replica_set_is_shown_in_its_place() -> None:
    of = fleet()
    for name, label, kind in (("p", "pod-template-hash", "Deployment"), ("q", "rollouts-pod-template-hash", "Rollout")):
        owner, identity = Owner(kind="ReplicaSet", name="chat-7f9"), Identity(labels=((label, "7f9"),))
        of.charge(charge(name, HALF, owner=owner, identity=identity))
        assert holder_row(of, of.charges[f"uid-{name}"], drifted=False)["owner"] == {"kind": kind, "name": "chat"}


def test_what_is_not_known_is_empty() -> None:
    of = fleet()
    of.charge(PLAIN)
    row = holder_row(of, of.charges["uid-p"], drifted=False)
    assert (row["owner"], row["since"], row["endsBy"]) == ({"kind": "", "name": ""}, "", "")


def test_a_card_that_the_device_lists_no_more_has_a_negative_minor() -> None:
    of = fleet()
    of.charge(charge("p", grant(7, core=100)))
    [held] = holder_row(of, of.charges["uid-p"], drifted=False)["devices"]
    assert (held["minor"], held["id"], held["model"]) == (-1, "GPU-7", "")


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (PLAIN, True),
        (charge("p", unknown=("gpu",)), True),
        (charge("p"), False),
        (charge("p", HALF, priority=kubelet_allocation.BEYOND), False),
    ],
)
def test_only_pods_with_devices_have_a_row(held: Charge, *, expected: bool) -> None:
    assert holds_devices(held) is expected
