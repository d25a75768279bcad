"""Copies of a Fleet share what neither has changed. A change of one copy is not visible in another."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Identity, Peers, PodSelection
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import Attachable, Disk, Mounts
from tests.objects.builders import card, charge, fleet, grant
from tests.unit.core.affinity_worlds import select

NODES = ("a", "b")
APPS = ("x", "y")
SELECTIONS = [PodSelection(peers=(Peers(namespaces=("ns",), selector=select(app=app)),)) for app in APPS]
STEPS = st.tuples(st.sampled_from(("charge", "release", "copy", "count")), st.integers(0, 3), st.integers(0, 7))


def nodes() -> Fleet:
    return fleet({name: (card(0),) for name in NODES})


def some(number: int) -> Charge:
    app, node = APPS[number % 2], NODES[number // 2 % 2]
    identity = Identity(namespace="ns", labels=(("app", app),), controller=f"uid-{app}")
    mounts = Mounts(attachables=(Attachable(driver="d", handle=app),), disks=(Disk(kind="ebs", id=app),))
    return charge(f"p{number}", grant(0, core=10), node=node, identity=identity, mounts=mounts)


def seen(of: Fleet) -> Any:
    """Return all that is kept of the pods, by node."""
    disk = Disk(kind="ebs", id="x", read_only=False)
    return {
        name: (
            {each.uid for each in of.on_node(name)},
            [int(of.affinity_index.count(each)[row]) for each in SELECTIONS],
            [int(of.affinity_index.replicas.count(f"uid-{app}")[row]) for app in APPS],
            int(of.volumes.attached.counts("d")[row]),
            row in of.volumes.disks.conflicts(disk),
            int(of.cards["gpu"].users[row].sum()),
        )
        for name, row in of.rows.items()
    }


@settings(max_examples=80)
@given(st.lists(STEPS, max_size=30))
def test_copies_are_independent(steps: list[tuple[str, int, int]]) -> None:
    fleets: list[tuple[Fleet, dict[int, Charge]]] = [(nodes(), {})]
    for what, which, number in steps:
        made, charges = fleets[which % len(fleets)]
        match what:
            case "charge":
                made.charge(some(number))
                charges[number] = some(number)
            case "release":
                made.release(f"uid-p{number}")
                charges.pop(number, None)
            case "copy" if len(fleets) < 4:
                fleets.append((made.copy(), dict(charges)))
            case _:
                made.affinity_index.count(SELECTIONS[number % 2])
    for made, charges in fleets:
        fresh = nodes()
        for each in charges.values():
            fresh.charge(each)
        assert seen(made) == seen(fresh)
