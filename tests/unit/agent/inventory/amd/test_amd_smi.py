"""How the GPU tests read amd-smi, whose versions write the same facts in different forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import amd_smi, machine
from tests.objects import amd_trees

CARD = {
    "gpu": 0,
    "asic": {"device_id": "0x74a1", "asic_serial": "0x1901EAD3A2ECD4A6", "num_compute_units": 304},
    "bus": {"bdf": "0000:0C:00.0"},
    "vram": {"size": {"value": 196592, "unit": "MB"}},
    "numa": {"node": 0, "affinity": 0},
}
FACTS = {"id": "1901ead3a2ecd4a6", "device": "74a1", "mebibytes": "196592", "units": "304", "numa": "0"}


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        ([CARD], {}),
        ({"gpu_data": [CARD]}, {}),
        ([{**CARD, "vram": {"size": "196592 MB"}}], {}),
        ([{**CARD, "asic": {"device_id": "0x74a1", "asic_serial": "N/A"}}], {"id": "", "units": ""}),
    ],
)
def test_facts(answer: Any, changed: dict[str, str]) -> None:
    assert amd_smi.facts(json.dumps(answer)) == {"0000:0c:00.0": {**FACTS, **changed}}


def test_the_gpu_tests_run_only_where_the_driver_holds_a_card(tmp_path: Path) -> None:
    assert machine.amd_obstacle(tmp_path).startswith("no GPU of AMD")
    assert machine.amd_obstacle(amd_trees.mi210(tmp_path / "mi210").root) == ""
