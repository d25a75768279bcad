"""The comparison of the fixture with NVIDIA's library, tested on the fixture itself."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth_agent.vendors.nvidia.nvml import library
from tests.gpu import ask
from tests.gpu.ask import Answers
from tests.gpu.describe import NOT_AVAILABLE, describe, differences
from tests.nvml.fixture import Gpu, MigDevice, NvLink, NvmlFixture, Process, a100, t4

CONSTANTS = "nvmlEventType", "nvmlClocks", "nvmlMemory_"
"""Beginnings of names that are none of functions."""
FUNCTION_NOT_FOUND = "error 13"
MIG = MigDevice(uuid="MIG-0aa1d6c4-0000-5000-8000-000000000001", profile="3g.40gb", gpu_instance=2, ofas=1)


def busy() -> Gpu:
    return replace(
        a100(3),
        processes=[
            Process(pid=4711, used=1024),
            Process(pid=4712, used=NOT_AVAILABLE, gpu_instance=2, compute_instance=0),
        ],
        remapped_uncorrected=2,
        remapped_pending=True,
        recovery_action=1,
        links=[NvLink(end="gpu", remote="00000000:13:00.0"), NvLink(end="gpu", remote="-", active=False)],
        p2p={a100(1).uuid: 1},
    )


def answers(fixture: NvmlFixture) -> Answers:
    fixture.write()
    return ask.ask(fixture.environment() | {ask.VARIABLE: str(fixture.library)})


@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param({"gpus": [a100(1), replace(a100(2), mig_mode=True, migs=[MIG]), busy()]}, id="mig-and-busy"),
        pytest.param({"gpus": [replace(t4(0), retired_pages=3, retired_pending=True, virtualization=2)]}, id="pages"),
        pytest.param({"loaded": False}, id="no driver"),
    ],
)
def test_what_is_described_answers_as_the_original(tmp_path: Path, fixture: dict[str, Any]) -> None:
    original = answers(NvmlFixture(tmp_path / "original", driver="580.159.04", cuda=13000, **fixture))
    assert differences(original, answers(describe(original, tmp_path / "copy"))) == []


def test_the_fixture_knows_every_function_that_the_agent_calls(tmp_path: Path) -> None:
    answers_by_call = answers(NvmlFixture(tmp_path, gpus=[busy(), replace(a100(2), mig_mode=True, migs=[MIG])]))
    assert [name for name, answer in answers_by_call.items() if answer == FUNCTION_NOT_FOUND] == []
    calls = {name.split()[at] for name in answers_by_call for at in range(len(name.split()))}
    called = set(re.findall(r"pynvml\.(nvml[A-Z]\w+)", Path(library.__file__).read_text()))
    assert {name for name in called if not name.startswith(CONSTANTS)} - calls == set()


@pytest.mark.parametrize(
    ("real", "fixture", "expected"),
    [
        (
            {"a": 1, "b": 1, "c": 1},
            {"b": 1, "c": 2, "d": 3},
            ["a: real 1, fixture None", "c: real 1, fixture 2", "d: real None, fixture 3"],
        ),
        (
            {"nvmlErrorString 27": "Unknown Error"},
            {"nvmlErrorString 27": "B"},
            ["nvmlErrorString 27: real 'Unknown Error', fixture 'B'"],
        ),
        ({"nvmlErrorString 28": "A"}, {"nvmlErrorString 28": "B"}, ["nvmlErrorString 28: real 'A', fixture 'B'"]),
        ({"nvmlErrorString 28": "Unknown Error"}, {"nvmlErrorString 28": "B"}, []),
        ({"nvmlErrorString 30": "A"}, {"nvmlErrorString 30": "Unknown Error"}, []),
    ],
)
def test_differences(real: Answers, fixture: Answers, expected: list[str]) -> None:
    assert differences(real, fixture) == expected
