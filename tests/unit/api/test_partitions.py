"""Partition tables: the tables of Devices, and the built-in table."""

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api.allocation.partitions import NVSWITCH, Partition, PartitionError, Table, built_in, parse
from tests.objects.builders import GI


def table(body: object) -> Table:
    return parse(orjson.dumps(body).decode())


TABLE_IS_READ = {
    "empty": ({}, ()),
    "no set of a size": ({"2": []}, ((2, ()),)),
    "little is needed": ({"1": [{"minors": [7]}]}, ((1, (Partition(minors=(7,)),)),)),
    "all fields": (
        {"2": [{"minors": [3, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 1}]},
        ((2, (Partition(minors=(1, 3), link="NVLink", bandwidth=400 * GI, score=1),)),),
    ),
    "null, and a field of a later version": (
        {"2": [{"minors": [0, 1], "ringBusBandwidth": None, "gpuLinkType": None, "allocationScore": None, "x": 1}]},
        ((2, (Partition(minors=(0, 1)),)),),
    ),
    "sizes in order of numbers": ({"10": [], "2": [], "1": []}, ((1, ()), (2, ()), (10, ()))),
    "sets as they are written": (
        {"1": [{"minors": [1]}, {"minors": [0]}]},
        ((1, (Partition(minors=(1,)), Partition(minors=(0,)))),),
    ),
    "0": ({"1": [{"minors": [0], "ringBusBandwidth": 0}]}, ((1, (Partition(minors=(0,), bandwidth=0),)),)),
}


@pytest.mark.parametrize(("body", "found"), TABLE_IS_READ.values(), ids=TABLE_IS_READ)
def test_a_table_is_read(body: Any, found: Table) -> None:
    assert table(body) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "not JSON", id="empty"),
        pytest.param("{", "not JSON", id="cut off"),
        pytest.param("[]", "not a JSON object", id="a list"),
        pytest.param('{"two": []}', '"two" is not a number of GPUs', id="a word for a size"),
        pytest.param('{"0": []}', '"0" is not a number of GPUs from 1 to 256', id="size 0"),
        pytest.param('{"02": []}', '"02" is not a number', id="a zero before it"),
        pytest.param('{"257": []}', '"257" is not a number', id="more than a node has"),
        pytest.param('{"2": {}}', "2: not a list", id="no list"),
        pytest.param('{"2": [1]}', "2[0]: not an object", id="no object"),
        pytest.param('{"2": [{}]}', "2[0].minors: None are not 2 different minors", id="no minors"),
        pytest.param('{"2": [{"minors": [1]}]}', "2[0].minors: [1] are not 2", id="too few"),
        pytest.param('{"2": [{"minors": [1, 1]}]}', "2[0].minors: [1, 1] are not 2 different", id="one twice"),
        pytest.param('{"1": [{"minors": [-1]}]}', "1[0].minors: [-1]", id="negative"),
        pytest.param('{"1": [{"minors": ["0"]}]}', "1[0].minors", id="text"),
        pytest.param('{"1": [{"minors": [true]}]}', "1[0].minors", id="truth"),
        pytest.param('{"1": [{"minors": [0]}, {"minors": 1}]}', "1[1].minors", id="the second"),
        pytest.param('{"1": [{"minors": [0], "allocationScore": "1"}]}', "allocationScore a whole number", id="score"),
        pytest.param('{"1": [{"minors": [0], "gpuLinkType": 1}]}', "gpuLinkType must be text", id="link"),
        pytest.param('{"1": [{"minors": [0], "ringBusBandwidth": "x"}]}', '1[0].ringBusBandwidth: "x"', id="bandwidth"),
        pytest.param(
            '{"1": [{"minors": [0], "ringBusBandwidth": "-1"}]}', "is not a quantity such", id="less than none"
        ),
        pytest.param('{"1": [{"minors": [0], "ringBusBandwidth": []}]}', "is not a quantity such", id="a list"),
    ],
)
def test_what_is_no_table_is_refused_by_its_place(text: str, words: str) -> None:
    with pytest.raises(PartitionError) as caught:
        parse(text)
    assert words in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "2", "minors", "allocationScore"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_read_or_refused(body: object) -> None:
    with contextlib.suppress(PartitionError):
        for size, sets in table(body):
            assert all(len(partition.minors) == size for partition in sets)


def test_the_table_of_a_board_has_even_parts_of_it() -> None:
    assert {size: [partition.minors for partition in sets] for size, sets in NVSWITCH} == {
        1: [(minor,) for minor in range(8)],
        2: [(0, 1), (2, 3), (4, 5), (6, 7)],
        4: [(0, 1, 2, 3), (4, 5, 6, 7)],
        8: [(0, 1, 2, 3, 4, 5, 6, 7)],
    }
    assert {(partition.score, partition.link) for _, sets in NVSWITCH for partition in sets} == {(1, "NVLink")}


@pytest.mark.parametrize(
    ("model", "known"),
    [
        *[
            pytest.param(name, True, id=name)
            for name in (
                "NVIDIA H100 80GB HBM3",
                "H100-80GB-HBM3",
                "NVIDIA-H100-80GB-HBM3",
                "NVIDIA H100 96GB HBM3",
                "NVIDIA H200",
                "NVIDIA H800",
                "NVIDIA H20",
                "NVIDIA H20-3e",
                "NVIDIA B200",
                "NVIDIA B300 SXM6 AC",
                "H100",
                "H800",
                "H20",
                "H200",
                "B200",
            )
        ],
        *[
            pytest.param(name, False, id=name or "no name")
            for name in (
                "",
                "NVIDIA H100 PCIe",
                "NVIDIA H100 NVL",
                "NVIDIA H200 NVL",
                "NVIDIA H800 PCIe",
                "NVIDIA A100-SXM4-80GB",
                "NVIDIA GH200 480GB",
                "NVIDIA GB200",
                "NVIDIA L20",
                "Tesla T4",
                "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            )
        ],
    ],
)
def test_boards_are_known_by_the_name_of_their_cards(model: str, *, known: bool) -> None:
    assert built_in([model], range(8)) == (NVSWITCH if known else ())


@pytest.mark.parametrize(
    ("minors", "known"),
    [
        pytest.param(range(8), True, id="eight"),
        pytest.param(range(7), True, id="one is missing"),
        pytest.param([0, 1, 2, 6, 7], True, id="three are missing"),
        pytest.param(range(4), False, id="a board of four has no switch"),
        pytest.param(range(16), False, id="sixteen"),
        pytest.param([0, 1, 2, 3, 4, 5, 6, 8], False, id="numbered otherwise"),
        pytest.param([], False, id="none"),
    ],
)
def test_a_board_has_eight_cards(minors: Any, *, known: bool) -> None:
    assert bool(built_in(["NVIDIA H200"], minors)) is known
