"""Devices as the API server sends them: each contradiction is named, and excludes only the cards that it affects."""

from typing import Any

import pytest

from berth_api import allocation, links, names
from berth_api.allocation.partitions import NVSWITCH, Partition, Table
from berth_api.device import DeviceStatus
from berth_operator.core.values.inventory import CardFacts, CardInfo
from berth_operator.state.objects import devices
from tests.objects.builders import A100, A100_BYTES, CORE, MEMORY, RATIO, condition, device, entry
from tests.objects.managed_fields import fields_of

Raw = dict[str, Any]


def usable(raw: Raw) -> list[tuple[str, int]]:
    return [(card.type, card.minor) for card in devices.record(raw).inventory.cards if card.healthy]


def with_resources(minor: int, **amounts: str) -> Raw:
    long = {"core": CORE, "memory": MEMORY, "ratio": RATIO, "other": "koordinator.sh/gpu-memory"}
    return entry(minor, resources={long[key]: value for key, value in amounts.items()})


def test_a_device_is_read() -> None:
    record = devices.record(device("n", entry(0), generation=7, labels={names.VENDOR_LABEL: "amd"}))
    assert (record.name, record.uid, record.generation) == ("n", "uid-device-n", 7)
    assert (record.driver_version, record.inventory.vendor, record.problems) == ("570.124.06", "amd", ())
    (card,) = record.inventory.cards
    assert (card.type, card.minor, card.id, card.model, card.healthy) == ("gpu", 0, "GPU-0", A100, True)
    assert dict(card.amounts) == {"gpu-core": 100, "gpu-memory": A100_BYTES, "gpu-memory-ratio": 100}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"metadata": {"name": "n", "uid": "u"}}, id="nothing"),
        pytest.param({"metadata": {"name": "n", "uid": "u"}, "spec": None, "status": None}, id="null"),
        pytest.param(device("n"), id="no devices"),
    ],
)
def test_an_empty_device_is_read(raw: Raw) -> None:
    record = devices.record(raw)
    assert (record.inventory.cards, record.inventory.vendor, record.problems) == ((), "nvidia", ())


def test_both_prefixes_are_read() -> None:
    raw = device("n", entry(0, resources={"koordinator.sh/gpu-memory": "16Gi"}))
    (card,) = devices.record(raw).inventory.cards
    assert dict(card.amounts) == {"gpu-core": 100, "gpu-memory": 16 * 2**30, "gpu-memory-ratio": 100}


@pytest.mark.parametrize(
    ("kind", "amounts"),
    [
        pytest.param("rdma", {"rdma": 100}, id="rdma"),
        pytest.param("fpga", {"fpga": 100}, id="fpga"),
    ],
)
def test_a_device_that_does_not_say_its_size_is_a_hundred_hundredths(kind: str, amounts: dict[str, int]) -> None:
    (card,) = devices.record(device("n", entry(0, type=kind, resources={}))).inventory.cards
    assert dict(card.amounts) == amounts


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        pytest.param({"health": False}, True, id="unhealthy"),
        pytest.param({"mig": {"enabled": True}}, False, id="in MIG mode"),
        pytest.param({"mig": {"enabled": True}, "health": False}, False, id="in MIG mode and unhealthy"),
    ],
)
def test_a_card_that_cannot_be_handed_out_stands_in_the_inventory_all_the_same(fields: Raw, *, failed: bool) -> None:
    record = devices.record(device("n", entry(0, **fields), entry(1)))
    assert [card.healthy for card in record.inventory.cards] == [False, True]
    assert [card.failed for card in record.inventory.cards] == [failed, False]
    assert record.problems == ()
    assert dict(record.inventory.cards[0].amounts)["gpu-memory"] == A100_BYTES


CONTRADICTIONS = {
    "one UUID twice": (
        [entry(0, id="GPU-X"), entry(1, id="GPU-X"), entry(2)],
        ["spec.devices[0].id: GPU-X is used more than once", "spec.devices[1].id: GPU-X is used more than once"],
        [2],
    ),
    "a link to nothing": (
        [entry(0, links=[{"minor": 5, "type": "NVLink"}]), entry(1)],
        ["spec.devices[0].links: minor 5 is not another gpu device"],
        [1],
    ),
    "a link to itself": (
        [entry(0, links=[{"minor": 0, "type": "NVLink"}]), entry(1)],
        ["spec.devices[0].links: minor 0 is not another gpu device"],
        [1],
    ),
    "a word for memory": (
        [with_resources(0, memory="lots"), entry(1)],
        [f'spec.devices[0].resources.{MEMORY}: "lots" is not a quantity'],
        [1],
    ),
    "negative memory": (
        [with_resources(0, memory="-1Gi"), entry(1)],
        [f"spec.devices[0].resources.{MEMORY}: -1Gi is negative; allowed are quantities from 0"],
        [1],
    ),
    "two cards' core": (
        [with_resources(0, memory="1Gi", core="200"), entry(1)],
        [f"spec.devices[0].resources.{CORE}: 200; allowed is 100 for a card"],
        [1],
    ),
    "half a card's ratio": (
        [with_resources(0, memory="1Gi", ratio="50"), entry(1)],
        [f"spec.devices[0].resources.{RATIO}: 50; allowed is 100 for a card"],
        [1],
    ),
    "two amounts under two prefixes": (
        [with_resources(0, memory="1Gi", other="2Gi"), entry(1)],
        ["spec.devices[0].resources.koordinator.sh/gpu-memory: 2Gi differs from the amount under the other prefix"],
        [1],
    ),
    "no memory": (
        [with_resources(0, core="100"), entry(1)],
        [f"spec.devices[0].resources: a healthy GPU has no {MEMORY}"],
        [1],
    ),
    "zero memory": (
        [with_resources(0, memory="0"), entry(1)],
        [f"spec.devices[0].resources: a healthy GPU has no {MEMORY}"],
        [1],
    ),
}


@pytest.mark.parametrize(("entries", "problems", "left"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_named_and_excludes_its_cards_alone(
    entries: list[Raw], problems: list[str], left: list[int]
) -> None:
    raw = device("n", *entries)
    record = devices.record(raw)
    assert len(record.problems) == len(problems)
    for problem, words in zip(record.problems, problems, strict=True):
        assert problem.startswith(words)
    assert usable(raw) == [("gpu", minor) for minor in left]


def test_an_excluded_card_offers_nothing() -> None:
    (card,) = devices.record(device("n", with_resources(0, memory="lots"))).inventory.cards
    assert card.amounts == ()


# --- places and subdevices of cards -----------------------------------------------------------------------------


def only(*entries: Raw, **spec: Any) -> CardInfo:
    raw = device("n", *entries)
    raw["spec"] |= spec
    record = devices.record(raw)
    assert record.problems == ()
    return record.inventory.cards[0]


def test_the_place_and_labels_of_a_card_are_read() -> None:
    place = {"socketID": 1, "nodeID": 3, "pcieID": "0000:17:00.0", "busID": "0000:18:00.0"}
    card = only(entry(0, topology=place, moduleID=7, labels={"b": "2", "a": "1"}))
    assert (card.socket, card.numa, card.pcie, card.module) == (1, 3, "0000:17:00.0", 7)
    assert dict(card.labels).items() >= {"a": "1", "b": "2"}.items()
    assert list(card.labels) == sorted(card.labels)


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        pytest.param({}, {"berth.dev/model": A100}, id="model"),
        pytest.param({"model": ""}, {}, id="nothing known"),
        pytest.param(
            {"model": "", "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0000:17:00.0", "busID": ""}},
            {"berth.dev/numa-node": "0", "berth.dev/pcie-switch": "0000:17:00.0"},
            id="places",
        ),
        pytest.param({"labels": {"berth.dev/model": "mine", "x": ""}}, {"berth.dev/model": "mine", "x": ""}, id="own"),
    ],
)
def test_what_is_known_of_a_card_can_be_selected_without_labels_by_others(fields: Raw, labels: dict[str, str]) -> None:
    assert dict(only(entry(0, **fields)).labels) == labels


@pytest.mark.parametrize("fields", [pytest.param({}, id="left out"), pytest.param({"topology": None}, id="null")])
def test_a_card_without_a_reported_place(fields: Raw) -> None:
    card = only(entry(0, **fields))
    assert (card.socket, card.numa, card.pcie, card.module, card.links) == (-1, -1, "", -1, ())


@pytest.mark.parametrize(
    ("link", "strength"),
    [
        pytest.param({"type": "NVLink", "count": 18}, 1800, id="eighteen NVLinks"),
        pytest.param({"type": "NVLink", "count": 1}, 100, id="one"),
        pytest.param({"type": "NVLink"}, 100, id="not counted"),
        pytest.param({"type": "XGMI", "count": 1}, 100, id="one XGMI link"),
        pytest.param({"type": "HCCS", "count": 2}, 200, id="two HCCS links"),
        pytest.param({"type": "Unheard-of", "count": 9}, 10, id="a type of a newer agent"),
        pytest.param({"type": "SameBoard"}, 60, id="board"),
        pytest.param({"type": "SingleSwitch"}, 50, id="switch"),
        pytest.param({"type": "MultiSwitch"}, 40, id="switches"),
        pytest.param({"type": "HostBridge"}, 30, id="bridge"),
        pytest.param({"type": "SameNUMANode"}, 20, id="NUMA node"),
        pytest.param({"type": "System"}, 10, id="system"),
    ],
)
def test_links_are_as_good_as_their_way(link: Raw, strength: int) -> None:
    ((other, link_type, count),) = only(entry(0, links=[{"minor": 1, **link}]), entry(1)).links
    assert (other, links.score(link_type, count)) == (1, strength)


def test_of_equal_links_and_labels_one_is_kept() -> None:
    entries = [entry(0, links=[{"minor": 1, "type": "NVLink"}], labels={"a": "b"}), entry(1)]
    first, second = only(*entries), only(*entries)
    assert first.links is second.links
    assert first.labels is second.labels


MIG: Raw = {
    "enabled": True,
    "instances": [
        {"id": f"MIG-{i}", "profile": profile, "gpuInstance": i, "computeInstance": 0, "memory": "10Gi"}
        for i, profile in enumerate(["1g.10gb", "1g.10gb", "1g.10gb+me", "3g.40gb"])
    ],
}
ALIKE = MIG | {"instances": [{**instance, "profile": "1g.10gb"} for instance in MIG["instances"]]}
OTHERS = ALIKE | {"instances": [{**each, "id": f"MIG-other-{i}"} for i, each in enumerate(ALIKE["instances"])]}
PARTS: Raw = MIG | {
    "instances": [
        {**each, "profile": profile}
        for each, profile in zip(MIG["instances"], ("1c.3g.40gb", "1c.3g.40gb", "3g.40gb"), strict=False)
    ]
}


def sliced(name: str) -> Raw:
    """Return four instances in three slices each."""
    return ALIKE | {
        "instances": [{**instance, "replicas": 3, "replicaResource": name} for instance in ALIKE["instances"]]
    }


INSTANCES = {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-3g.40gb": 1}
WHOLE_CARD = {"gpu-core": 100, "gpu-memory": A100_BYTES, "gpu-memory-ratio": 100}


WHAT_A_CARD_IS_DIVIDED_INTO = {
    "mixed by default": ({"mig": MIG}, {}, False, INSTANCES),
    "mixed": ({"mig": MIG}, {"migStrategy": "mixed"}, False, INSTANCES),
    "single": ({"mig": ALIKE}, {"migStrategy": "single"}, False, {"nvidia.com/mig-1g.10gb": 4}),
    "none: a card like any other": ({"mig": MIG}, {"migStrategy": "none"}, True, {}),
    "not in MIG mode": ({"mig": MIG | {"enabled": False}}, {}, True, {}),
    "no instances": ({"mig": {"enabled": True}}, {}, False, {}),
    "unhealthy, with all its instances": ({"mig": MIG, "health": False}, {}, False, {}),
    "parts of instances are not offered": ({"mig": PARTS}, {}, False, {"nvidia.com/mig-3g.40gb": 1}),
    "but under single each is a GPU": (
        {"mig": PARTS | {"instances": PARTS["instances"][:2]}},
        {"migStrategy": "single"},
        False,
        {"nvidia.com/mig-1c.3g.40gb": 2},
    ),
    "sliced instances": ({"mig": sliced("")}, {}, False, {"nvidia.com/mig-1g.10gb": 12}),
    "sliced instances under another name": (
        {"mig": sliced("nvidia.com/mig-1g.10gb.shared")},
        {},
        False,
        {"nvidia.com/mig-1g.10gb.shared": 12},
    ),
    "sliced instances that are GPUs": (
        {"mig": sliced("nvidia.com/gpu")},
        {"migStrategy": "single"},
        False,
        {"nvidia.com/mig-1g.10gb": 12},
    ),
    "that are no GPUs": ({"mig": sliced("nvidia.com/gpu.shared")}, {"migStrategy": "single"}, False, {}),
    "none: a card that is sliced like any other": (
        {"mig": MIG, "replicas": 2},
        {"migStrategy": "none"},
        True,
        {"nvidia.com/gpu.shared": 2},
    ),
    "sliced": ({"replicas": 4}, {}, True, {"nvidia.com/gpu.shared": 4}),
    "not sliced": ({"replicas": 1}, {}, True, {}),
}


@pytest.mark.parametrize(
    ("fields", "spec", "healthy", "subdevices"), WHAT_A_CARD_IS_DIVIDED_INTO.values(), ids=WHAT_A_CARD_IS_DIVIDED_INTO
)
def test_what_a_card_is_divided_into(fields: Raw, spec: Raw, subdevices: dict[str, int], *, healthy: bool) -> None:
    card = only(entry(0, **fields), **spec)
    assert card.healthy is healthy
    assert dict(card.amounts) == {**WHOLE_CARD, **subdevices}
    named = {name for _, name in card.instances}
    assert named == {name for name in subdevices if name.startswith("nvidia.com/mig-")}


@pytest.mark.parametrize("name", ["", "nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_by_which_name_slices_are_had(name: str) -> None:
    assert only(entry(0, replicas=4, replicaResource=name)).replica_resource == name


def test_the_memory_of_instances_is_that_of_the_device() -> None:
    instances = [
        {
            "id": f"MIG-{number}",
            "profile": profile,
            "gpuInstance": number,
            "computeInstance": 0,
            "memory": memory,
            **more,
        }
        for number, (profile, memory, more) in enumerate(
            [
                ("1g.10gb", "9728Mi", {}),
                ("1g.10gb", "9Gi", {}),
                ("3g.40gb", "39Gi", {"replicas": 3, "replicaResource": "nvidia.com/mig-3g.40gb.shared"}),
            ]
        )
    ]
    card = only(entry(0, mig={"enabled": True, "instances": instances}))
    assert dict(card.instance_memory) == {
        "nvidia.com/mig-1g.10gb": 9 * 2**30,
        "nvidia.com/mig-3g.40gb.shared": 13 * 2**30,
    }


@pytest.mark.parametrize(
    ("entries", "problems", "given"),
    [
        pytest.param([entry(0, mig=ALIKE), entry(1, mig=OTHERS)], [], [0, 1], id="all alike"),
        pytest.param([entry(0), entry(1, mig={"enabled": False})], [], [0, 1], id="none in MIG mode"),
        pytest.param([entry(0, mig=ALIKE), entry(0, type="rdma", id="R")], [], [0], id="a NIC has no instances"),
        pytest.param(
            [entry(0, mig=MIG), entry(1, mig=OTHERS)],
            [
                f"spec.devices[{i}].mig: migStrategy single, and instances of 1g.10gb and 1g.10gb+me and 3g.40gb; "
                "allowed are those of one profile"
                for i in range(2)
            ],
            [],
            id="instances of several profiles",
        ),
        pytest.param(
            [entry(0, mig=ALIKE), entry(1)],
            ["spec.devices[0].mig: migStrategy single, and other GPUs are not in MIG mode; allowed are all or none"],
            [1],
            id="a card that is not in MIG mode, which is as it was",
        ),
    ],
)
def test_under_strategy_single_all_slots_are_alike(entries: list[Raw], problems: list[str], given: list[int]) -> None:
    raw = device("n", *entries)
    raw["spec"]["migStrategy"] = "single"
    record = devices.record(raw)
    assert list(record.problems) == problems
    gpus = [card for card in record.inventory.cards if card.type == "gpu"]
    assert [card.minor for card in gpus if card.healthy or card.instances] == given


@pytest.mark.parametrize(
    ("choice", "expected"), [("scheduler", (False, False)), ("kubelet", (True, False)), ("one", (False, True))]
)
def test_who_chooses_replicas_is_read(choice: str, expected: tuple[bool, bool]) -> None:
    raw = device("n", entry(0))
    raw["spec"]["replicaChoice"] = choice
    inventory = devices.record(raw).inventory
    assert (inventory.kubelet_chooses, inventory.one_replica) == expected


def test_virtual_functions_are_read_by_group() -> None:
    groups = [
        {"labels": {"b": "2", "a": "1"}, "vfs": [{"minor": 0, "busID": "x"}, {"minor": -1, "busID": "y"}]},
        {"vfs": [{"minor": 5}]},
        {},
    ]
    card = only(entry(0, type="rdma", id="R", resources={}, vfGroups=groups))
    assert card.functions == (
        ((("a", "1"), ("b", "2")), ((0, "x"), (-1, "y"))),
        ((), ((5, ""),)),
        ((), ()),
    )
    assert dict(card.amounts) == {"rdma": 100, allocation.FUNCTIONS: 3}


PART_CONTRADICTIONS = {
    "an instance twice": (
        entry(0, mig=MIG | {"instances": [MIG["instances"][0]] * 2}),
        "spec.devices[0].mig.instances[0].id: MIG-0 is used more than once",
    ),
    "an instance with a card's id": (
        entry(0, mig=MIG | {"instances": [MIG["instances"][0] | {"id": "GPU-1"}]}),
        "spec.devices[0].mig.instances[0].id: GPU-1 is used more than once",
    ),
    "no profile": (
        entry(0, mig=MIG | {"instances": [MIG["instances"][0] | {"profile": "small"}]}),
        "spec.devices[0].mig.instances[0].profile: small is not of the form 1g.10gb",
    ),
    "instances and slices": (entry(0, mig=MIG, replicas=2), "spec.devices[0].replicas: 2 of a card in MIG mode"),
    "a sliced NIC": (
        entry(0, type="rdma", id="R", resources={}, replicas=2),
        "spec.devices[0].replicas: 2 of a device that is no GPU; allowed is 1",
    ),
    "a virtual function twice": (
        entry(0, type="rdma", id="R", resources={}, vfGroups=[{"vfs": [{"minor": 0, "busID": "x"}]}] * 2),
        "spec.devices[0].vfGroups: virtual function x is listed 2 times; allowed is once",
    ),
}


@pytest.mark.parametrize(("raw", "problem"), PART_CONTRADICTIONS.values(), ids=PART_CONTRADICTIONS)
def test_parts_that_contradict_each_other_exclude_their_card(raw: Raw, problem: str) -> None:
    record = devices.record(device("n", raw, entry(1)))
    assert record.problems[0].startswith(problem)
    bad = record.inventory.cards[0]
    assert (bad.healthy, bad.amounts, bad.instances) == (False, (), ())


# --- labels and annotations -------------------------------------------------------------------------------------

PAIR = '{"2": [{"minors": [1, 0], "allocationScore": 3}]}'
TABLE: Table = ((2, (Partition(minors=(0, 1), score=3),)),)
H100 = "NVIDIA H100 80GB HBM3"
BOARD = [entry(minor, model=H100) for minor in range(8)]


def marked(*entries: Raw, table: str | None = None, **labels: str) -> devices.DeviceRecord:
    keys = {"vendor": names.VENDOR_LABEL, "policy": names.PARTITION_POLICY_LABEL}
    raw = device("n", *entries, labels={keys[name]: value for name, value in labels.items()})
    raw["metadata"]["annotations"] = {} if table is None else {names.PARTITIONS: table}
    return devices.record(raw)


@pytest.mark.parametrize("labels", [{}, {"policy": "Honor"}])
def test_without_a_table_of_its_own_a_device_leaves_the_policy_to_its_node(labels: dict[str, str]) -> None:
    assert marked(entry(0), **labels).inventory.partitions_only is None


@pytest.mark.parametrize(
    ("labels", "partitions_only"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"policy": "Honor"}, True, id="Honor"),
        pytest.param({"policy": "Prefer"}, False, id="Prefer"),
        pytest.param({"policy": "honor"}, False, id="anything else is Prefer"),
    ],
)
def test_policies_are_read_from_labels(labels: dict[str, str], *, partitions_only: bool) -> None:
    assert marked(entry(0), table=PAIR, **labels).inventory.partitions_only is partitions_only


@pytest.mark.parametrize(
    ("entries", "table", "labels", "expected"),
    [
        pytest.param([entry(0)], None, {}, (), id="none"),
        pytest.param([entry(0)], PAIR, {}, TABLE, id="by annotation"),
        pytest.param(BOARD, None, {}, NVSWITCH, id="built in"),
        pytest.param(BOARD, PAIR, {}, TABLE, id="annotation before built in"),
        pytest.param(BOARD, "{}", {}, (), id="annotation with an empty table"),
        pytest.param(BOARD, None, {"vendor": "amd"}, (), id="another vendor's"),
        pytest.param([*BOARD[:7], entry(7, model=A100)], None, {}, (), id="one of another model"),
        pytest.param([*BOARD[:7], BOARD[7] | {"health": False}], None, {}, NVSWITCH, id="one that failed"),
        pytest.param([*BOARD, entry(0, type="rdma", id="R", resources={})], None, {}, NVSWITCH, id="with a NIC"),
    ],
)
def test_partitions_are_reported_or_built_in(
    entries: list[Raw], table: str | None, labels: dict[str, str], expected: Table
) -> None:
    read = marked(*entries, table=table, **labels)
    assert (read.inventory.partitions, read.problems) == (expected, ())


@pytest.mark.parametrize("table", [pytest.param("", id="empty"), pytest.param('{"2": [{"minors": [1]}]}', id="wrong")])
def test_a_bad_table_is_reported_and_counts_as_none(table: str) -> None:
    record = marked(*BOARD, table=table)
    (problem,) = record.problems
    assert problem.startswith(f"metadata.annotations.{names.PARTITIONS}: ")
    assert record.inventory.partitions == ()
    assert all(card.healthy for card in record.inventory.cards)


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        pytest.param({names.VENDOR_LABEL: "amd"}, {}, id="vendor"),
        pytest.param({names.PARTITION_POLICY_LABEL: "Honor"}, {names.PARTITIONS: PAIR}, id="policy"),
        pytest.param({}, {names.PARTITIONS: PAIR}, id="partitions"),
        pytest.param({}, {names.PARTITIONS: "x"}, id="bad partitions"),
    ],
)
def test_what_changes_without_the_generation_is_read_all_the_same(labels: Raw, annotations: Raw) -> None:
    raw = device("n", entry(0))
    first = devices.record(raw)
    again = devices.record(device("n", entry(0, health=False)), known=first)
    assert again.inventory is first.inventory  # the generation shows that the spec is the same
    raw["metadata"] |= {"labels": labels, "annotations": annotations}
    changed = devices.record(raw, known=again)
    assert (changed.inventory, changed.problems) == (devices.record(raw).inventory, devices.record(raw).problems)
    assert (changed.inventory, changed.problems) != (first.inventory, first.problems)
    back = devices.record(device("n", entry(0)), known=changed)
    assert (back.inventory, back.problems) == (first.inventory, first.problems)


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        pytest.param({"minor": -1}, "spec.devices[0].minor: ", id="a number out of range"),
        pytest.param({"type": "TPU"}, "spec.devices[0].type: ", id="another type"),
        pytest.param({"id": ""}, "spec.devices[0].id: ", id="no id"),
        pytest.param({"topology": {"nodeID": "x"}}, "spec.devices[0].topology.nodeID: ", id="deep down"),
    ],
)
def test_a_spec_that_cannot_be_parsed_is_reported_and_offers_nothing(bad: Raw, place: str) -> None:
    record = devices.record(device("n", {**entry(0), **bad}, entry(1)))
    assert record.inventory.cards == ()
    (problem,) = record.problems
    assert problem.startswith(place)


def test_a_field_of_another_version_is_passed_over() -> None:
    assert usable(device("n", entry(0, color="green"))) == [("gpu", 0)]


def test_conditions_are_read_from_the_status() -> None:
    first = devices.record(device("n", conditions=[condition("Ready", "Unknown")]))
    second = devices.record(device("n", conditions=[condition("Ready", "True")]), known=first)
    for record, status in ((first, "Unknown"), (second, "True")):
        assert [(each.type, each.status) for each in record.conditions] == [("Ready", status)]
        assert tuple(record.status.conditions) == record.conditions


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"gpus": "many"}, id="a word for a number"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="a condition without status"),
        pytest.param({"devices": {}}, id="not a list"),
    ],
)
def test_a_status_that_cannot_be_read_counts_as_empty(status: Raw) -> None:
    record = devices.record(device("n", entry(0), status=status))
    assert record.status == DeviceStatus()
    assert record.conditions == ()
    assert len(record.inventory.cards) == 1


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        pytest.param({}, CardFacts(), id="unknown"),
        pytest.param(
            {"multiprocessors": 108, "memoryBandwidth": "2039040M", "encoders": 0, "decoders": 5},
            CardFacts(multiprocessors=108, memory_bandwidth=2039040 * 10**6, encoders=0, decoders=5),
            id="known",
        ),
        pytest.param({"memoryBandwidth": "9E"}, CardFacts(memory_bandwidth=10**15), id="more than any GPU has"),
    ],
)
def test_how_large_and_fast_a_card_is(fields: Raw, facts: CardFacts) -> None:
    (card,) = devices.record(device("n", entry(0, **fields))).inventory.cards
    assert card.facts == facts


# --- fields of other managers -------------------------------------------------------------------------------------


def owned(raw: Raw, **managers: Raw) -> Raw:
    """Return a Device with what these managers apply by force, in this order; `berth_agent` is the agent."""
    entries: list[Raw] = []
    for manager, applied in managers.items():
        part = "status" if "status" in applied else "spec"
        subresource = "status" if part == "status" else ""
        fields = {"manager": manager.replace("_", "-"), "operation": "Apply", "subresource": subresource}
        entries.append({**fields, "fieldsV1": fields_of(applied), "time": str(len(entries))})
    return {**raw, "metadata": {**raw["metadata"], "managedFields": entries}}


def reported(*cards: Raw, **status: Any) -> Raw:
    return device("n", *cards, status=status, driver="570")


SPEC: Raw = {"spec": {"driverVersion": "570", "devices": [entry(0), entry(1)]}}
WITHOUT_HEALTH: Raw = {"spec": {**SPEC["spec"], "devices": [entry(0), {**entry(1)}]}}
del WITHOUT_HEALTH["spec"]["devices"][1]["health"]
HEALTH: Raw = {"spec": {"devices": [{"type": "gpu", "minor": 1, "health": True}]}}
REPORT: Raw = {"status": {"bootID": "b", "foreign": []}}


@pytest.mark.parametrize(
    ("raw", "foreign"),
    [
        pytest.param(owned(reported(entry(0), entry(1)), berth_agent=SPEC), "", id="all of the agent"),
        pytest.param(reported(entry(0)), "", id="of a snapshot"),
        pytest.param(owned(reported(entry(0)), devcluster=SPEC), "", id="that no agent has written"),
        pytest.param(
            owned(reported(entry(0), entry(1)), berth_agent=WITHOUT_HEALTH, kubectl=HEALTH),
            "field manager kubectl wrote spec.devices[minor=1,type=gpu].health",
            id="health",
        ),
        pytest.param(
            owned(reported(entry(0), entry(1)), berth_agent=SPEC, argocd=SPEC), "", id="the same values of another"
        ),
        pytest.param(
            owned(reported(entry(0), entry(1), entry(2)), berth_agent=SPEC, velero={"spec": {"devices": [entry(2)]}}),
            "field manager velero wrote spec.devices[minor=2,type=gpu]",
            id="a card",
        ),
        pytest.param(
            owned(reported(entry(0), entry(1), foreign=[], bootID="b"), berth_agent=SPEC, velero=REPORT),
            "field manager velero wrote status.bootID",
            id="report",
        ),
        pytest.param(
            owned(reported(entry(0), entry(1), model="x"), berth_agent=SPEC, velero={"status": {"model": "x"}}),
            "",
            id="what the operator writes",
        ),
    ],
)
def test_values_of_other_managers_are_found(raw: Raw, foreign: str) -> None:
    assert devices.record(raw).foreign == foreign


def test_values_that_the_agent_owns_again_are_trusted_again() -> None:
    first = devices.record(owned(reported(entry(0), entry(1)), berth_agent=WITHOUT_HEALTH, kubectl=HEALTH))
    again = devices.record(owned(reported(entry(0), entry(1)), berth_agent=SPEC, kubectl=HEALTH), first)
    assert (bool(first.foreign), again.foreign) == (True, "")
