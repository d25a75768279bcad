"""The allocation annotation: written values are read back, and invalid values are refused with their place."""

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import allocation
from berth_api.allocation import AllocationError, Function, Grant, parse, render
from berth_api.resources import quantity
from tests.objects.builders import GI, grant

NAMES = st.sampled_from(["gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "huawei.com/npu-core"])
AMOUNTS = st.dictionaries(NAMES, st.integers(1, quantity.MAX), min_size=1, max_size=5)
FUNCTIONS = st.lists(
    st.builds(Function, minor=st.integers(-1, allocation.MAX_MINOR), bus_id=st.sampled_from(["", "0000:1f:00.2"])),
    max_size=3,
).map(tuple)
CARDS = st.builds(
    lambda kind, minor, amounts, uuid, functions: Grant(
        type=kind,
        minor=minor,
        amounts=tuple(sorted(amounts)),
        id=f"GPU-{uuid}" if kind == "gpu" and uuid else uuid,
        functions=functions,
    ),
    st.sampled_from(allocation.TYPES),
    st.integers(100, allocation.MAX_MINOR),
    AMOUNTS.map(dict.items),
    st.sampled_from(["", "1", "1f-0"]),
    FUNCTIONS,
)
PIECES = st.builds(
    lambda minor, name, number: Grant(type="gpu", minor=minor, amounts=((name, 1),), id=f"MIG-{name}-{number}"),
    st.integers(0, 3),
    st.sampled_from([allocation.REPLICAS, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me"]),
    st.integers(0, 9),
)
GRANTS = st.lists(
    st.one_of(CARDS, PIECES),
    max_size=8,
    unique_by=(
        lambda each: (each.type, each.minor, each.id if each.is_subdevice else ""),
        lambda each: (each.type, each.id or each.minor),
    ),
)


@given(GRANTS, st.sampled_from(["kubernetes.io/", "koordinator.sh/"]))
def test_what_is_rendered_is_read_back(grants: list[Grant], prefix: str) -> None:
    order = {kind: i for i, kind in enumerate(sorted(allocation.TYPES))}
    assert parse(render(grants, prefix)) == tuple(sorted(grants, key=lambda grant: order[grant.type]))


def test_koordinators_own_annotation_is_read() -> None:
    text = (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"16Gi",'
        '"koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0","extension":{"gpuSharedResourceTemplate":"vir04"}}],'
        '"rdma":[{"resources":{"koordinator.sh/rdma":"1"},"extension":{"vfs":[{"minor":3}]}}]}'
    )
    assert parse(text) == (
        grant(0, core=100, memory=16 * GI, ratio=100),
        Grant(type="rdma", minor=0, amounts=(("rdma", 1),), functions=(Function(minor=3),)),
    )


def many(count: int) -> str:
    return orjson.dumps({"gpu": [{"minor": i, "resources": {"gpu-core": 1}} for i in range(count)]}).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "not JSON", id="empty"),
        pytest.param("{", "not JSON", id="cut off"),
        pytest.param('{"gpu": NaN}', "not JSON", id="not a number"),
        pytest.param("[" * 5000, "not JSON", id="deep"),
        pytest.param("[]", "not a JSON object", id="a list"),
        pytest.param("null", "not a JSON object", id="null"),
        pytest.param('"gpu"', "not a JSON object", id="a text"),
        pytest.param('{"tpu/x": []}', '"tpu/x" is not a device type; allowed are gpu, rdma, fpga', id="no type"),
        pytest.param('{"gpu": {}}', "gpu: not a list", id="no list"),
        pytest.param('{"gpu": null}', "gpu: not a list", id="null for a list"),
        pytest.param('{"gpu": [1]}', "gpu[0]: not an object", id="a number for a card"),
        pytest.param('{"rdma": [{"minor": -1}]}', "rdma[0].minor: -1 is not a whole number", id="negative minor"),
        pytest.param('{"gpu": [{"minor": 65536}]}', "gpu[0].minor: 65536", id="absurd minor"),
        pytest.param('{"gpu": [{"minor": 99999999999999999999}]}', "gpu[0].minor", id="minor over 64 bits"),
        pytest.param('{"gpu": [{"minor": "0"}]}', "gpu[0].minor: '0'", id="minor as text"),
        pytest.param('{"gpu": [{"minor": 1.5}]}', "gpu[0].minor: 1.5", id="part of a minor"),
        pytest.param('{"gpu": [{"minor": true}]}', "gpu[0].minor: True", id="minor as truth"),
        pytest.param('{"gpu": [{"minor": null}]}', "gpu[0].minor: None", id="null minor"),
        pytest.param('{"gpu": [{"id": 5}]}', "gpu[0]: id must be text", id="id as number"),
        pytest.param('{"gpu": [{"resources": []}]}', "gpu[0].resources: names no amount", id="an empty list"),
        pytest.param('{"gpu": [{"resources": [1]}]}', "gpu[0]: id must be text and resources", id="resources as list"),
        pytest.param('{"gpu": [{"minor": 0}]}', "gpu[0].resources: names no amount", id="no resources"),
        pytest.param('{"gpu": [{"resources": {"gpu-core": 0}}]}', "gpu[0].resources: names no amount", id="only zeros"),
        pytest.param(
            '{"gpu": [{"resources": {"gpu-core": 1}}, {"minor": 1, "resources": {"gpu-core": "x"}}]}',
            'gpu[1].resources.gpu-core: "x" is not a quantity',
            id="bad quantity",
        ),
        pytest.param('{"gpu": [{"resources": {"gpu-core": 1.5}}]}', "gpu[0].resources.gpu-core: 1.5", id="a float"),
        pytest.param('{"gpu": [{"resources": {"gpu-core": null}}]}', "gpu[0].resources.gpu-core: None", id="null"),
        pytest.param('{"gpu": [{"resources": {"gpu-core": true}}]}', "gpu[0].resources.gpu-core: True", id="truth"),
        pytest.param(
            '{"gpu": [{"resources": {"gpu-core": "-5"}}]}', "gpu[0].resources.gpu-core: -5 is negative", id="negative"
        ),
        pytest.param(
            '{"gpu": [{"resources": {"gpu-core": 1}}, {"resources": {"gpu-core": 1}}]}',
            "gpu: minor 0 has more than one entry",
            id="one card twice",
        ),
        pytest.param(many(257), "gpu: 257 cards; allowed are 256", id="more cards than a node has"),
        pytest.param(many(2049), "gpu: 2049 entries; allowed are 2048", id="more entries than there can be"),
    ],
)
def test_a_malformed_annotation_is_refused_by_its_place(text: str, words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse(text)
    assert words in str(caught.value)


def test_as_many_cards_as_a_node_has_are_read() -> None:
    assert len(parse(many(256))) == 256


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(AllocationError):
        parse(text)


FIELDS = ["gpu", "minor", "id", "resources", "gpu-core", "extension", "vfs", "busID"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_read_or_refused(body: object) -> None:
    try:
        text = orjson.dumps(body).decode()
    except orjson.JSONEncodeError:  # integers over 64 bits
        return
    with contextlib.suppress(AllocationError):
        parse(text)


@pytest.mark.parametrize(
    ("found", "visible", "counted", "handles"),
    [
        pytest.param(grant(0, core=5), "GPU-0", {"gpu-core": 5}, (), id="a share of a card"),
        pytest.param(
            Grant(type="gpu", minor=0, amounts=((allocation.REPLICAS, 1), ("gpu-core", 25)), id="GPU-0::3"),
            "GPU-0",
            {allocation.REPLICAS: 1, "gpu-core": 25},
            ("GPU-0::3",),
            id="a replica is seen as its card",
        ),
        pytest.param(
            Grant(type="gpu", minor=0, amounts=(("nvidia.com/mig-1g.10gb", 1),), id="MIG-a"),
            "MIG-a",
            {"nvidia.com/mig-1g.10gb": 1},
            ("MIG-a",),
            id="an instance",
        ),
        pytest.param(
            Grant(
                type="rdma",
                minor=4,
                amounts=(("rdma", 1),),
                id="0000:1f:00.0",
                functions=(Function(minor=0), Function(minor=7, bus_id="b")),
            ),
            "0000:1f:00.0",
            {"rdma": 1, allocation.FUNCTIONS: 2},
            ("rdma 4 function 0", "b"),
            id="virtual functions, one without a bus id",
        ),
    ],
)
def test_what_a_grant_takes_of_its_card(
    found: Grant, visible: str, counted: dict[str, int], handles: tuple[str, ...]
) -> None:
    assert (found.visible, dict(found.counted), found.handles) == (visible, counted, handles)


@pytest.mark.parametrize(
    ("extension", "parent"), [({"parent": "GPU-1"}, "GPU-1"), ({"parent": 1}, ""), ({}, ""), (None, ""), ("text", "")]
)
def test_the_card_that_a_part_is_of(extension: object, parent: str) -> None:
    entry = {"minor": 0, "id": "MIG-1", "resources": {"nvidia.com/mig-1g.10gb": "1"}, "extension": extension}
    [parsed] = allocation.parse(orjson.dumps({"gpu": [entry]}).decode())
    assert parsed.parent == parent


def test_one_id_under_two_minors_is_refused() -> None:
    entries = [{"minor": minor, "id": "GPU-1", "resources": {"kubernetes.io/gpu-core": "1"}} for minor in (0, 1)]
    with pytest.raises(allocation.AllocationError, match="gpu: id GPU-1 has 2 entries; allowed is one entry"):
        allocation.parse(orjson.dumps({"gpu": entries}).decode())
